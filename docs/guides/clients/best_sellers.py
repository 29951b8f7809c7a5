"""A web page of what is put into carts most often, kept up to date by the events of a store.

Usage: python3 best_sellers.py http://127.0.0.1:2113 [PORT]
"""

import collections
import contextlib
import html
import http.server
import os
import sys
import threading

import gesta

if len(sys.argv) < 2:
    sys.exit(__doc__)
server, port = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8000
times, lock = collections.Counter(), threading.Lock()


def follow():
    """Counts all events from the first one on, and then new ones as they come."""
    carts = gesta.Query(categories=["cart"], types=["item-added"])
    with gesta.connect(server, token=os.environ.get("GESTA_TOKEN")) as store:
        for message in store.follow_all(filter=carts):
            if message.kind == "event":
                with lock:
                    times[message.event.data["item"]] += 1


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with lock:
            rows = [f"<li>{html.escape(item)}: {count}</li>" for item, count in times.most_common()]
        body = f'<!doctype html><meta http-equiv="refresh" content="1"><h1>Best sellers</h1><ol>{"".join(rows)}</ol>'
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        """Says nothing about each request."""


with http.server.ThreadingHTTPServer(("127.0.0.1", port), Page) as page, contextlib.suppress(KeyboardInterrupt):
    threading.Thread(target=follow, daemon=True).start()
    print(f"http://127.0.0.1:{page.server_port}", flush=True)
    page.serve_forever()
