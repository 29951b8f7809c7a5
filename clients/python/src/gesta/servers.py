"""The servers that a client was given, and which of them is asked."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Dict, Sequence, Set, Tuple

from .errors import Problem

logger = logging.getLogger("gesta")

# Why a call waits is said again after so many seconds.
SAID_AGAIN_AFTER = 60.0


@dataclass(frozen=True)
class Server:
    """Where a server is reached.

    >>> Server.parse("https://events.example.org/store")
    Server(is_encrypted=True, host='events.example.org', port=443, prefix='/store')
    >>> Server.parse("127.0.0.1:2113")
    Traceback (most recent call last):
    ValueError: '127.0.0.1:2113' is not the address of a server: it must be as http://127.0.0.1:2113
    """

    is_encrypted: bool
    host: str
    port: int
    # The beginning of all paths, if a proxy has given the server a part of its own.
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Server:
        """Reads the address of a server."""
        if "@" in url:
            # Wherever it stands: a password with a `#` or a `/` is not read as one. Never shown, for messages end up in
            # logs.
            host = url.rpartition("@")[2]
            raise ValueError(f"the address of {host} must not contain a user or a password: give user= and password=")
        rule = f"{url!r} is not the address of a server: it must be as http://127.0.0.1:2113"
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(rule) from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(rule)
        is_encrypted = parts.scheme == "https"
        return cls(is_encrypted, parts.hostname, port or (443 if is_encrypted else 80), parts.path.rstrip("/"))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_encrypted else 'http'}://{host}:{self.port}{self.prefix}"

    @property
    def is_on_this_machine(self) -> bool:
        """Whether what is sent to the server leaves this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass
class Servers:
    """The servers in their order. One is asked until it fails, then the next one.

    Each reason why a server does not answer is said once, until it answers again.
    """

    given: Sequence[Server]
    _present: int = 0
    _troubles: Dict[Server, Set[str]] = field(default_factory=dict)
    _waits: Dict[Tuple[Server, str], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def present(self) -> Server:
        """The server that is asked now."""
        return self.given[self._present]

    def after(self, server: Server) -> Server:
        """The next server."""
        return self.given[(self.given.index(server) + 1) % len(self.given)]

    def answered(self, server: Server) -> None:
        """Notes that a server answers."""
        if self._troubles:
            with self._lock:
                was_away = self._troubles.pop(server, None) is not None
            if was_away:
                logger.info("%s answers again", server)

    def failed(self, server: Server, reason: str, is_hopeless: bool = False) -> None:
        """Notes that a server does not answer, says so, and turns to the next one, unless that is hopeless."""
        with self._lock:
            said = self._troubles.setdefault(server, set())
            is_news = reason not in said
            said.add(reason)
            if self.given[self._present] == server:
                self._present = (self._present + 1) % len(self.given)
        if is_news:
            logger.warning("no answer from %s: %s%s", server, reason, "" if is_hopeless else "; trying again")

    def waits(self, server: Server, problem: Problem) -> None:
        """Says why a server that answers is asked again and again, but not each time."""
        now, key = time.monotonic(), (server, problem.kind)
        with self._lock:
            is_news = key not in self._waits or now - self._waits[key] > SAID_AGAIN_AFTER
            if is_news:
                self._waits[key] = now
        if is_news:
            logger.warning("%s lets this client wait: %s", server, problem)
