"""Puts items into a cart, one event each, and says where each one is stored.

Usage: python3 add_items.py http://127.0.0.1:2113 CART ITEM...
"""

import os
import sys

import gesta

if len(sys.argv) < 4:
    sys.exit(__doc__)
server, cart, *items = sys.argv[1:]
with gesta.connect(server, token=os.environ.get("GESTA_TOKEN")) as store:
    for item in items:
        stored = store.append(f"cart-{cart}", [gesta.EventData("item-added", {"item": item})])
        print(f"{item}: revision {stored.first_revision}", flush=True)
