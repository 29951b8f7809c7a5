"""A server that answers as it is told, one connection after the other, and remembers what it was asked."""

import io
import json
import socket
import threading
from typing import Any, List, Tuple

# Instead of an answer: the connection is closed.
LOST = b""
# What a connection by TLS begins with.
TLS = b"\x16"


def answer(status: int, document: Any, *headers: str) -> bytes:
    """A whole answer, after which the connection is closed."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def problem(kind: str, status: int, *headers: str, **members: Any) -> bytes:
    """A problem document."""
    document = {"type": f"urn:gesta:problem:{kind}", "title": "A title", "status": status, "detail": "a detail"}
    return answer(status, {**document, **members}, *headers)


def messages(text: str) -> bytes:
    """Server-sent events, after which the connection is closed."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + text.encode()


class Scripted:
    """The server. Each answer is given to one request."""

    def __init__(self, *answers: bytes) -> None:
        self.asked: List[Tuple[str, bytes]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=(answers,), daemon=True)
        self._thread.start()

    def _serve(self, answers: Tuple[bytes, ...]) -> None:
        for given in answers:
            client, _ = self._listener.accept()
            with client, io.BufferedReader(client.makefile("rb", buffering=0)) as reader:
                if reader.peek(1)[:1] == TLS:
                    client.sendall(given)
                    continue
                line, length = reader.readline().decode("latin-1"), 0
                for header in iter(reader.readline, b"\r\n"):
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                self.asked.append((line.rsplit(" ", 1)[0], reader.read(length)))
                client.sendall(given)
        # Whoever comes now is refused.
        self._listener.close()

    def ended(self) -> List[Tuple[str, bytes]]:
        """Waits until all answers are given. Gives what was asked."""
        self._thread.join(60)
        assert not self._thread.is_alive(), self.asked
        return self.asked
