#!/usr/bin/env python3
"""A shop in memory, with the standard library alone: something to put under load. Usage: cart.py [PORT]

  POST /carts {"user": 7}                          201 {"id": "c1", "items": [], "total": 0, "state": "open"}
  PUT  /carts/c1/items/p3 {"quantity": 2}          200, the cart
  GET  /carts/c1                                   200, the cart
  POST /carts/c1/order                             200, the cart, with "state": "ordered"; 409 the second time
  GET  /products/p3                                200 {"id": "p3", "name": "lamp", "price": 1250}
"""
import http.server
import itertools
import json
import sys
import threading

PRODUCTS = {
    "p1": {"id": "p1", "name": "chair", "price": 4900},
    "p2": {"id": "p2", "name": "table, round", "price": 12900},
    "p3": {"id": "p3", "name": "lamp", "price": 1250},
}
carts, numbers, lock = {}, itertools.count(1), threading.Lock()


def answer(method, parts, body):
    """The status and the document that answer a request."""
    match method, parts:
        case "POST", ["carts"]:
            cart = {"id": f"c{next(numbers)}", "user": body["user"], "items": [], "total": 0, "state": "open"}
            carts[cart["id"]] = cart
            return 201, cart
        case "GET", ["products", product] if product in PRODUCTS:
            return 200, PRODUCTS[product]
        case "GET", ["carts", cart] if cart in carts:
            return 200, carts[cart]
        case "PUT", ["carts", cart, "items", product] if cart in carts and product in PRODUCTS:
            carts[cart]["items"].append({"product": product, "quantity": body["quantity"]})
            carts[cart]["total"] += PRODUCTS[product]["price"] * body["quantity"]
            return 200, carts[cart]
        case "POST", ["carts", cart, "order"] if cart in carts:
            if carts[cart]["state"] == "ordered":
                return 409, {"error": "the cart is ordered already"}
            carts[cart]["state"] = "ordered"
            return 200, carts[cart]
    return 404, {"error": "there is no such thing"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer leaves in one packet, and at once.
    wbufsize = -1
    disable_nagle_algorithm = True

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with lock:
            status, document = answer(self.command, self.path.strip("/").split("/"), json.loads(body or "{}"))
            text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = handle_any

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


if __name__ == "__main__":
    server = Server(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
