"""Sends calls to servers and takes their answers: one attempt, and attempts until the outcome is known."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional, Tuple

from . import documents
from .connections import ClosedWhileIdle, Connection, NoAnswerOfGesta, Pool, reason_of
from .errors import (
    GroupElsewhere,
    NoTls,
    NotTrusted,
    OutcomeUnknown,
    Overloaded,
    Problem,
    Unavailable,
    no_tls,
    not_trusted,
    outcome_unknown,
    problem_of,
    unavailable,
)
from .retry import Effect, Policy, after_doubt, is_of_this_server, may_be_repeated
from .servers import Server, Servers

# What goes wrong with a connection.
BROKEN = (OSError, http.client.HTTPException)
# With these a connection ended while TLS began, as where a server stops.
CUT_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
EVENT_STREAM = "text/event-stream"
JSON = "application/json"
# The longest pause, in seconds, that a server can ask for.
RETRY_AFTER_MAX = 60.0


def segment(name: str) -> str:
    """A name as a segment of a path.

    >>> segment("order/7")
    'order%2F7'
    """
    return urllib.parse.quote(name, safe="")


def _media_type(response: http.client.HTTPResponse) -> str:
    return (response.headers.get("Content-Type") or "").partition(";")[0].strip().lower()


def json_of(document: Any) -> bytes:
    """A document as the body of a call. Numbers that JSON does not have are refused."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True)
class Call:
    """A call before it is sent. Parameters that are `None` are left out."""

    method: str
    path: str
    effect: Effect = Effect.READS
    parameters: Mapping[str, Any] = field(default_factory=dict)
    body: Optional[bytes] = None

    @property
    def target(self) -> str:
        """Path and query."""
        given = {name: value for name, value in self.parameters.items() if value is not None}
        return self.path + ("?" + urllib.parse.urlencode(given) if given else "")


@dataclass(frozen=True)
class Answer:
    """A whole answer that is no error."""

    headers: http.client.HTTPMessage
    document: Any


class Transport:
    """The way to the servers. Threads may share it."""

    def __init__(
        self, servers: Servers, authorization: Optional[str], tls: Optional[ssl.SSLContext], policy: Policy
    ) -> None:
        self.servers = servers
        self.policy = policy
        self._headers = {"Authorization": authorization} if authorization else {}
        self._tls = tls
        self._pool = Pool()

    def send(self, call: Call, only: Optional[Server] = None) -> Answer:
        """Sends a call until its outcome is known, to any server; or to `only` one, while that is there."""
        patience = self.policy.give_up_after if only is None else self.policy.answer_max
        deadline = time.monotonic() + patience
        server = only or self.servers.present()
        attempt = asked_since_pause = 0
        # A change that would be made twice is not sent by a connection that the server may just be closing.
        takes_idle = call.effect is not Effect.CHANGES
        is_in_doubt = False
        while True:
            try:
                return self._exchange(server, call, takes_idle)
            except ClosedWhileIdle:
                # Which is no news: the call goes by a new one at once.
                takes_idle, is_in_doubt = False, call.effect is not Effect.READS
                continue
            except Problem as problem:
                is_in_doubt = is_in_doubt or isinstance(problem, OutcomeUnknown)
                failure = after_doubt(problem) if is_in_doubt else problem
                if not self._goes_on(problem, call.effect, only):
                    raise failure from problem.__cause__
                last = problem
            asked_since_pause += 1
            if only is None and is_of_this_server(last):
                server = self.servers.after(server)
                if asked_since_pause < len(self.servers.given):
                    continue
            if isinstance(last, GroupElsewhere):
                self.servers.waits(server, last)
            pause = last.retry_after or self.policy.pause(attempt)
            if time.monotonic() + pause > deadline:
                raise failure
            time.sleep(pause)
            attempt, asked_since_pause = attempt + 1, 0

    @contextlib.contextmanager
    def open(self, call: Call, server: Server) -> Iterator[Tuple[Connection, http.client.HTTPResponse]]:
        """Sends a call whose answer does not end. Whoever leaves the block closes the connection."""
        connection = self._connect(server)
        try:
            connection.wait_at_most(self.policy.silence_max)
            try:
                response = self._begin(connection, server, call)
            except BROKEN as error:
                raise self.lost(server, call.effect, error) from error
            if _media_type(response) != EVENT_STREAM:
                kind = response.headers.get("Content-Type")
                came = f"{server} gave {kind or 'no Content-Type'} in place of {EVENT_STREAM}"
                detail = f"{came}: is it a server of Gesta?"
                raise Problem({"title": "The answer is no event stream", "detail": detail, "status": response.status})
            self.servers.answered(server)
            with response:
                yield connection, response
        finally:
            connection.close()

    def lost(self, server: Server, effect: Effect, error: BaseException) -> Problem:
        """Notes that a connection broke, after the call was sent. Gives the problem of the call."""
        reason = reason_of(error)
        self.servers.failed(server, reason)
        detail = f"{server}: {reason}"
        return unavailable(detail) if effect is Effect.READS else outcome_unknown(detail)

    def told(self, server: Server, problem: Problem) -> None:
        """Notes what a server says of itself: one that is not available is left, one that is overloaded waited for."""
        if isinstance(problem, Overloaded):
            self.servers.waits(server, problem)
        if isinstance(problem, Unavailable) and problem.status is not None:
            self.servers.failed(server, problem.detail)

    def may_repeat(self, problem: Problem, effect: Effect) -> bool:
        """Whether the same call may succeed later, with the servers that there are, and can do no harm."""
        return may_be_repeated(problem, effect) and not self._is_hopeless(problem)

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        self._pool.close()

    def _is_hopeless(self, problem: Problem) -> bool:
        return isinstance(problem, (NotTrusted, NoTls)) and len(self.servers.given) == 1

    def _goes_on(self, problem: Problem, effect: Effect, only: Optional[Server]) -> bool:
        if isinstance(problem, GroupElsewhere):
            return only is None and len(self.servers.given) > 1
        if isinstance(problem, Unavailable) and only is not None:
            return False
        return self.may_repeat(problem, effect)

    def _exchange(self, server: Server, call: Call, takes_idle: bool) -> Answer:
        """One attempt."""
        connection = self._pool.take(server) if takes_idle else None
        if connection is not None:
            try:
                return self._ask(connection, server, call)
            except BROKEN as error:
                raise ClosedWhileIdle from error
        connection = self._connect(server)
        try:
            return self._ask(connection, server, call)
        except BROKEN as error:
            raise self.lost(server, call.effect, error) from error

    def _connect(self, server: Server) -> Connection:
        connection = Connection(server, self._tls, self.policy.connect_max)
        try:
            connection.connect()
        except OSError as error:
            reason = reason_of(error)
            detail = f"cannot connect to {server}: {reason}"
            problem = unavailable(detail)
            if isinstance(error, ssl.SSLCertVerificationError):
                problem = not_trusted(detail)
            elif isinstance(error, ssl.SSLError) and not isinstance(error, CUT_TLS):
                problem = no_tls(detail)
            self.servers.failed(server, reason, is_hopeless=self._is_hopeless(problem))
            raise problem from error
        return connection

    def _ask(self, connection: Connection, server: Server, call: Call) -> Answer:
        """Sends a call and reads the answer to its end."""
        is_kept = False
        try:
            connection.wait_at_most(self.policy.answer_max)
            response = self._begin(connection, server, call)
            body = response.read()
            try:
                document = documents.read(body) if body else None
            except ValueError as error:
                if call.effect is Effect.READS and _media_type(response) == JSON:
                    # The server has answered, and would give the same again.
                    raise documents.unreadable(error, response.status) from error
                raise NoAnswerOfGesta("the answer is no JSON") from error
            self.servers.answered(server)
            is_kept = not response.will_close
            return Answer(response.headers, document)
        finally:
            if is_kept:
                self._pool.give(server, connection)
            else:
                connection.close()

    def _begin(self, connection: Connection, server: Server, call: Call) -> http.client.HTTPResponse:
        """Sends a call and reads the head of the answer. An answer that is an error becomes an exception."""
        headers = {**self._headers, "Content-Type": "application/json"} if call.body is not None else self._headers
        connection.http.request(call.method, server.prefix + call.target, call.body, headers)
        response = connection.http.getresponse()
        if response.status < 300:
            return response
        asked = response.headers.get("Retry-After", "")
        retry_after = min(float(asked), RETRY_AFTER_MAX) if asked.isascii() and asked.isdigit() else None
        try:
            problem = problem_of(documents.read(response.read()), retry_after)
        except (ValueError, AttributeError):
            # Not of this API: a proxy in between answers.
            text = f"HTTP status {response.status} without a problem document"
            if response.status >= 500:
                raise NoAnswerOfGesta(text) from None
            raise Problem({"title": text, "detail": str(server), "status": response.status}) from None
        self.told(server, problem)
        raise problem
