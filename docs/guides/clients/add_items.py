"""Puts items into a cart, one event each, and says where each one is stored.

Usage: python3 add_items.py http://127.0.0.1:2113 CART ITEM...
"""

import sys

import gesta

base, cart, *items = sys.argv[1:]
for item in items:
    answer = gesta.append(base, f"cart-{cart}", [{"type": "item-added", "data": {"item": item}}])
    print(f"{item}: revision {answer['first_revision']}", flush=True)
