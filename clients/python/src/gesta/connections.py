"""Connections to servers: made, kept for later calls, and what is wrong with them in words."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from typing import Dict, List, Optional

from .servers import Server

# Idle connections are kept for so many seconds. Servers keep them for longer.
IDLE_MAX = 30.0
# The most idle connections to each server.
IDLE_CONNECTIONS_MAX = 16


class NoAnswerOfGesta(http.client.HTTPException):
    """What came is no answer of this API, as where a proxy in between answers."""


class ClosedWhileIdle(Exception):
    """A connection was used again and broke, mostly because the server had closed it meanwhile."""


class Connection:
    """A connection to a server, and since when it has been idle."""

    def __init__(self, server: Server, tls: Optional[ssl.SSLContext], connect_max: float) -> None:
        if server.is_encrypted:
            self.http: http.client.HTTPConnection = http.client.HTTPSConnection(
                server.host, server.port, timeout=connect_max, context=tls
            )
        else:
            self.http = http.client.HTTPConnection(server.host, server.port, timeout=connect_max)
        self.is_reused = False
        self.idle_since = 0.0
        self._socket: Optional[socket.socket] = None

    def connect(self) -> None:
        """Connects. What was written is sent at once."""
        try:
            self.http.connect()
            self._socket = self.http.sock
            self.http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self.http.close()
            raise

    def wait_at_most(self, seconds: float) -> None:
        """The longest wait for the next bytes."""
        self.http.sock.settimeout(seconds)

    def cut(self) -> None:
        """Ends the connection under whoever waits for it."""
        # `http` lets go of the socket as soon as a response owns it, so it is kept here. The `shutdown` of a TLS socket
        # would take from the reading thread what it reads with: that of the socket below only ends what it waits for.
        if self._socket is not None:
            try:
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        """Closes the connection."""
        self.http.close()


class Pool:
    """Idle connections. Threads may share it."""

    def __init__(self) -> None:
        self._idle: Dict[Server, List[Connection]] = {}
        self._lock = threading.Lock()

    def take(self, server: Server) -> Optional[Connection]:
        """A connection that was used a moment ago."""
        with self._lock:
            idle = self._idle.get(server, [])
            while idle:
                connection = idle.pop()
                if time.monotonic() - connection.idle_since < IDLE_MAX:
                    connection.is_reused = True
                    return connection
                connection.close()
        return None

    def give(self, server: Server, connection: Connection) -> None:
        """Keeps a connection whose last answer was read to its end."""
        connection.idle_since = time.monotonic()
        with self._lock:
            idle = self._idle.setdefault(server, [])
            if len(idle) < IDLE_CONNECTIONS_MAX:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes all."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()


def reason_of(error: BaseException) -> str:
    """What went wrong, for people.

    >>> reason_of(ConnectionRefusedError(111, "Connection refused"))
    'Connection refused'
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message} (ca_file= names the authority to trust)"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or error}; is its URL http:// and not https://?"
    if isinstance(error, (socket.timeout, TimeoutError)):
        return "nothing came in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection ended before the answer came"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended in the middle of the answer"
    if isinstance(error, NoAnswerOfGesta):
        return str(error)
    return f"it does not speak HTTP as a server of Gesta does: {error!r}"
