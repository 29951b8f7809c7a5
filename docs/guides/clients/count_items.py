"""A consumer that survives restarts: counts how often each item was put into any cart.

The counts and the checkpoint lie in one SQLite file and change in one transaction, so each event is counted once.

Usage: python3 count_items.py http://127.0.0.1:2113 counts.db    follows the store until it is stopped
       python3 count_items.py --show counts.db                   prints the counts
"""

import contextlib
import json
import os
import sqlite3
import sys

import gesta


def open_counts(path):
    database = sqlite3.connect(path, timeout=30)
    database.executescript(
        """
        PRAGMA journal_mode = WAL;
        CREATE TABLE IF NOT EXISTS counts (item TEXT PRIMARY KEY, times INTEGER NOT NULL);
        CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY CHECK (id = 1), checkpoint TEXT NOT NULL);
        INSERT OR IGNORE INTO progress VALUES (1, 'start');
        """
    )
    return database


def count(database, store):
    (checkpoint,) = database.execute("SELECT checkpoint FROM progress").fetchone()
    added_to_carts = gesta.Query(categories=["cart"], types=["item-added"])
    for message in store.follow_all(after=checkpoint, filter=added_to_carts):
        with database:  # one transaction
            if message.event:
                database.execute(
                    "INSERT INTO counts VALUES (?, 1) ON CONFLICT (item) DO UPDATE SET times = times + 1",
                    (message.event.data["item"],),
                )
            database.execute("UPDATE progress SET checkpoint = ?", (message.checkpoint,))
        if message.kind == "caught_up":
            print("caught up", flush=True)


def main(server, path):
    database = open_counts(path)
    if server == "--show":
        print(json.dumps(dict(database.execute("SELECT item, times FROM counts ORDER BY item"))))
        return
    store = gesta.connect(server, token=os.environ.get("GESTA_TOKEN"))
    while True:
        try:
            count(database, store)
        except gesta.HistoryChanged:
            # The store was restored, and positions are used again: the counts may hold events that are gone.
            print("counting again from the start", flush=True)
            with database:
                database.execute("DELETE FROM counts")
                database.execute("UPDATE progress SET checkpoint = 'start'")


if len(sys.argv) != 3:
    sys.exit(__doc__)
with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends it
    main(*sys.argv[1:])
