"""A client of Gesta's HTTP API, in nothing but Python's standard library (3.8 or newer). Copy it into your program.

`append` repeats an append until its outcome is known; `follow` resumes a subscription until it is told to stop.
A server with users is told the API token in the environment variable GESTA_TOKEN.
"""

import http.client
import json
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

# After these answers the same request may succeed.
PASSING = {"overloaded", "unavailable", "outcome_unknown", "request_timeout"}
# Longest wait for the answer to an append, in seconds.
ANSWER_MAX = 30
# A subscription that is silent for longer than three heartbeats of the server is dead, in seconds.
SILENCE_MAX = 45


class Problem(Exception):
    """An answer of the server that is not a success. `kind` is the last part of the problem's type."""

    def __init__(self, document, retry_after=None):
        super().__init__(document.get("detail") or document.get("title") or "no problem document")
        self.document = document
        self.kind = document.get("type", "").rpartition(":")[2]
        self.retry_after = retry_after


def append(base, stream, events, expected="any", give_up_after=300):
    """Appends events to a stream and returns the server's answer, with `first_revision` and `checkpoint`.

    Each event is a dict with `type` and `data`; one without `id` gets an id here, before the first attempt. A repeated
    attempt has the same ids, so the server stores the events once and answers all attempts alike.
    """
    events = [{"id": str(uuid.uuid4()), **event} for event in events]
    body = json.dumps({"expected": expected, "events": events}).encode()
    url = f"{base}/streams/{urllib.parse.quote(stream, safe='')}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **_credentials()})
    deadline = time.monotonic() + give_up_after
    attempt = 0
    while True:
        try:
            with _open(request, ANSWER_MAX) as answer:
                return json.load(answer)
        except Problem as problem:
            failure, retry_after = problem, problem.retry_after
            if problem.kind not in PASSING:
                raise
        except (OSError, http.client.HTTPException, ValueError) as lost:
            # No answer, or a part of one: the events may be stored or not.
            failure, retry_after = lost, None
        if time.monotonic() > deadline:
            raise failure
        time.sleep(retry_after or _back_off(attempt))
        attempt += 1


def follow(base, after="start", path="/all", **parameters):
    """Yields `(kind, checkpoint, document)` without end; kinds are `event`, `checkpoint` and `caught_up`.

    `after` is `start`, `end` or a checkpoint; parameters are those of the subscription, as `category="cart"`. The
    subscription is resumed when the connection is lost. A refusal, as of a checkpoint that the store does not know, is raised.
    """
    attempt = 0
    while True:
        query = urllib.parse.urlencode({**parameters, "after": after}, doseq=True)
        request = urllib.request.Request(f"{base}{path}/subscribe?{query}", headers=_credentials())
        try:
            with _open(request, SILENCE_MAX) as answer:
                for message in _messages(answer):
                    attempt = 0
                    if message["event"] == "error":
                        raise Problem(message["data"])
                    after = message["id"]
                    yield message["event"], after, message["data"]
        except Problem as problem:
            if problem.kind not in PASSING:
                raise
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(_back_off(attempt))
        attempt += 1


def _credentials():
    token = os.environ.get("GESTA_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _open(request, timeout):
    try:
        return urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as answer:
        with answer:
            body = answer.read()
            retry_after = answer.headers.get("Retry-After", "")
        try:
            document = json.loads(body)
        except ValueError:
            document = {"type": "unavailable" if answer.code >= 500 else "", "title": f"HTTP status {answer.code}"}
        raise Problem(document, float(retry_after) if retry_after.isdigit() else None) from None


def _messages(answer):
    """Server-sent events: lines of `field: value`, and an empty line that ends a message."""
    message = {}
    for line in answer:
        line = line.decode().rstrip("\r\n")
        if line == "":
            if "data" in message:
                yield {**message, "data": json.loads(message["data"])}
            message = {}
            continue
        field, _, value = line.partition(":")
        message[field] = value[1:] if value.startswith(" ") else value


def _back_off(attempt):
    return min(5.0, 0.05 * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0)
