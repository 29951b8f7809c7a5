"""What the client does with each answer, against a server that is scripted."""

import base64
import doctest
import importlib
import json
import logging
import pkgutil
import socket
import threading
import traceback
import unittest
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List

import gesta
from gesta import EventData, Policy
from scripted import LOST, Scripted, answer, messages, problem

# What the client says is looked at where a test is about it.
logging.getLogger("gesta").addHandler(logging.NullHandler())
QUICK = Policy(give_up_after=30, first_pause=0.001, longest_pause=0.002)
STORED = {"stream": "s", "first_revision": 0, "last_revision": 0, "log": 0, "position": 1, "checkpoint": "c"}
DONE = {"log": 0, "position": 2, "checkpoint": "c"}


def connect(*servers: str, policy: Policy = QUICK) -> gesta.Store:
    return gesta.connect(*servers, policy=policy)


# An address at which nobody listens: no port that the system gives to others.
REFUSED_ADDRESS = "http://127.0.0.1:2"


class Appends(unittest.TestCase):
    """Goal: an append is repeated, with the same ids, whenever that can help, and never otherwise."""

    def test_what_may_pass_is_repeated_as_it_was(self) -> None:
        passing = [
            LOST,
            answer(201, b'{"stream":'),
            problem("overloaded", 503, "Retry-After: 0"),
            problem("unavailable", 503),
            problem("outcome_unknown", 504),
            problem("request_timeout", 408),
            answer(502, b"<html>"),
        ]
        server = Scripted(*passing, answer(201, STORED))
        with self.assertLogs("gesta", "WARNING"):
            appended = connect(server.url).append("s", [EventData("t", 1)])
        self.assertEqual(appended.position, 1)
        asked = server.ended()
        self.assertEqual(len(asked), len(passing) + 1)
        self.assertEqual(len({body for _, body in asked}), 1, "every attempt has the same ids")
        self.assertEqual(len(json.loads(asked[0][1])["events"][0]["id"]), 36)

    def test_a_refusal_is_raised_at_once(self) -> None:
        kinds = [
            (gesta.WrongExpectedRevision, "wrong_expected_revision", 409),
            (gesta.StoredAndDeleted, "stored_and_deleted", 409),
            (gesta.ConditionFailed, "condition_failed", 409),
            (gesta.Unauthenticated, "unauthenticated", 401),
            (gesta.Forbidden, "forbidden", 403),
            (gesta.InvalidArgument, "invalid_argument", 400),
            (gesta.Problem, "internal", 500),
        ]
        for error, kind, status in kinds:
            server = Scripted(problem(kind, status, field="expected", actual=7))
            with self.assertRaises(error) as raised:
                connect(server.url).append("s", [EventData("t", 1)])
            self.assertEqual((raised.exception.kind, raised.exception.status), (kind, status))
            self.assertEqual((raised.exception.field, raised.exception.actual), ("expected", 7))
            self.assertEqual(str(raised.exception), "A title: a detail")
            self.assertEqual(len(server.ended()), 1)

    def test_without_ids_a_lost_append_is_not_repeated(self) -> None:
        server = Scripted(LOST)
        with self.assertLogs("gesta"), self.assertRaises(gesta.OutcomeUnknown):
            connect(server.url).append("s", [EventData("t", 1), EventData("t", 2, id=None)])
        self.assertEqual(len(server.ended()), 1)

    def test_the_same_object_is_the_same_event(self) -> None:
        server = Scripted(answer(201, STORED), answer(201, STORED))
        event = EventData("t", 1)
        for _ in range(2):
            connect(server.url).append("s", [event])
        first, second = server.ended()
        self.assertEqual(first, second)

    def test_after_a_lost_answer_a_refusal_does_not_say_that_nothing_was_stored(self) -> None:
        lost, refusing = Scripted(LOST), Scripted(LOST, problem("forbidden", 403))
        # The next server is asked at once, however long the first one took.
        away = connect(lost.url, REFUSED_ADDRESS, policy=Policy(give_up_after=0))
        for store, reason in ((away, "Connection refused"), (connect(refusing.url), "a detail")):
            with self.assertLogs("gesta"), self.assertRaises(gesta.OutcomeUnknown) as raised:
                store.append("s", [EventData("t", 1)])
            self.assertIn(reason, raised.exception.detail)
        for kind, error in (
            ("wrong_expected_revision", gesta.WrongExpectedRevision),
            ("stored_and_deleted", gesta.StoredAndDeleted),
            ("condition_failed", gesta.ConditionFailed),
        ):
            with self.assertLogs("gesta"), self.assertRaises(error):
                connect(Scripted(LOST, problem(kind, 409)).url).append("s", [EventData("t", 1)])

    def test_an_append_by_a_connection_that_broke_was_perhaps_stored(self) -> None:
        kept = b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n{}"
        server = Scripted(kept, problem("forbidden", 403))
        store = connect(server.url)
        store.info()
        with self.assertRaises(gesta.OutcomeUnknown):
            store.append("s", [EventData("t", 1)])
        self.assertEqual(len(server.ended()), 2)

    def test_it_gives_up(self) -> None:
        store = connect(REFUSED_ADDRESS, policy=Policy(give_up_after=0))
        with self.assertLogs("gesta"), self.assertRaises(gesta.Unavailable) as raised:
            store.append("s", [EventData("t", 1)])
        self.assertIn("Connection refused", str(raised.exception))


class Changes(unittest.TestCase):
    """Goal: what the server would do a second time is repeated only if nothing was done."""

    def test_a_lost_delete_is_not_repeated(self) -> None:
        for lost in (LOST, problem("outcome_unknown", 504), answer(502, b"")):
            server = Scripted(lost)
            with self.assertRaises(gesta.OutcomeUnknown):
                connect(server.url).delete_stream("s")
            self.assertEqual(len(server.ended()), 1)

    def test_a_delete_that_was_not_done_is_repeated(self) -> None:
        server = Scripted(problem("overloaded", 503), problem("unavailable", 503), answer(200, DONE))
        self.assertEqual(connect(server.url).delete_stream("a/b", expected=3).position, 2)
        self.assertEqual(server.ended()[2][0], "DELETE /streams/a%2Fb?expected=3")


class SeveralServers(unittest.TestCase):
    """Goal: the next server is asked when one is away, and what is wrong is said, once."""

    def test_a_refused_connection_is_said_once_and_the_next_is_asked(self) -> None:
        server = Scripted(answer(200, DONE), answer(200, DONE))
        store = connect(REFUSED_ADDRESS, server.url)
        with self.assertLogs("gesta", "WARNING") as said:
            store.delete_stream("s")
            store.delete_stream("s")
        told = [record.getMessage() for record in said.records]
        self.assertEqual(told, [f"no answer from {REFUSED_ADDRESS}: Connection refused; trying again"])
        self.assertEqual(len(server.ended()), 2)

    def test_a_certificate_that_is_not_trusted_is_said(self) -> None:
        server = Scripted(LOST)
        store = connect(server.url.replace("http:", "https:"), policy=Policy(give_up_after=0))
        with self.assertLogs("gesta", "WARNING") as said, self.assertRaises(gesta.Unavailable):
            store.info()
        self.assertIn(server.url[5:], said.output[0])

    def test_a_server_without_tls_is_not_waited_for(self) -> None:
        server = Scripted(answer(400, {}))
        with self.assertLogs("gesta", "WARNING") as said, self.assertRaises(gesta.NoTls):
            connect(server.url.replace("http:", "https:")).info()
        self.assertIn("no TLS", said.output[0])
        self.assertIn("is its URL http:// and not https://?", said.output[0])
        self.assertNotIn("trying again", said.output[0])

    def test_what_is_no_list_of_events_is_refused_with_its_place(self) -> None:
        store = connect("http://127.0.0.1:9")
        wrong: List[Any] = [{"type": "t", "data": 1}, EventData("t", 1), "t", None]
        for events in wrong:
            with self.assertRaisesRegex(TypeError, "events must be a list of EventData"):
                store.append("s", events)
            with self.assertRaisesRegex(TypeError, "events must be a list of EventData"):
                store.append_to_streams([gesta.StreamAppend("s", events)])
        several: List[Any] = [EventData("t", 1), {"type": "t", "data": 1}]
        with self.assertRaisesRegex(TypeError, r"events\[1\] must be an EventData, and is of type dict"):
            store.append("s", several)

    def test_a_server_cannot_ask_for_any_pause(self) -> None:
        server = Scripted(problem("overloaded", 503, "Retry-After: 86400"))
        with self.assertLogs("gesta") as said, self.assertRaises(gesta.Overloaded) as raised:
            connect(server.url).info()
        self.assertEqual(raised.exception.retry_after, 60)
        self.assertIn("lets this client wait", said.output[0])

    def test_a_server_that_stops_is_left(self) -> None:
        first, second = Scripted(problem("unavailable", 503)), Scripted(answer(200, {}), answer(200, {}))
        store = connect(first.url, second.url)
        store.info()
        store.info()
        self.assertEqual((len(first.ended()), len(second.ended())), (1, 2))

    def test_a_group_is_looked_for_at_all_servers_but_only_where_there_are_several(self) -> None:
        elsewhere = problem("group_elsewhere", 421, owner={"node": 2})
        first, second = Scripted(elsewhere), Scripted(answer(200, {"status": "idle"}))
        self.assertEqual(connect(first.url, second.url).group("s", "g").info(), {"status": "idle"})
        alone = Scripted(elsewhere)
        with self.assertRaises(gesta.GroupElsewhere):
            connect(alone.url).group("s", "g").info()


class Following(unittest.TestCase):
    """Goal: following goes on where it was when a connection breaks, and raises what does not pass."""

    def follow(self, *answers: bytes) -> "tuple[Scripted, Iterator[gesta.Message]]":
        server = Scripted(*answers)
        return server, connect(server.url).follow_all(after="a", filter=gesta.Query(categories=["cart"]))

    def test_it_resumes_after_the_last_whole_message(self) -> None:
        first = 'id: b\nevent: checkpoint\ndata: {}\n\nid: c\nevent: caught_up\ndata: {"che'
        error = "event: error\ndata: " + json.dumps({"type": "urn:gesta:problem:unavailable", "status": 503}) + "\n\n"
        last = messages("id: d\nevent: caught_up\ndata: {}\n\n")
        server, followed = self.follow(messages(first), messages(error), problem("overloaded", 503), last)
        with self.assertLogs("gesta"):
            kinds = [(message.kind, message.checkpoint) for message in (next(followed), next(followed))]
        self.assertEqual(kinds, [("checkpoint", "b"), ("caught_up", "d")])
        afters = [line.rpartition("after=")[2] for line, _ in server.ended()]
        self.assertEqual(afters, ["a", "b", "b", "b"])

    def test_a_server_that_is_away_is_told_once(self) -> None:
        class Enough(Exception):
            pass

        class Impatient(Policy):
            def pause(self, attempt: int) -> float:
                if attempt == 5:
                    raise Enough
                return 0.001

        store = connect(REFUSED_ADDRESS, policy=Impatient())
        with self.assertLogs("gesta") as said, self.assertRaises(Enough):
            next(store.follow_all())
        self.assertEqual(len(said.records), 1, said.output)

    def test_what_is_no_event_stream_is_raised(self) -> None:
        for headers, came in (((), "no Content-Type"), (("Content-Type: text/html",), "text/html")):
            server = Scripted(*[answer(200, b"<p>app</p>", *headers)] * 2)
            store, expected = connect(server.url), f"no event stream: {server.url} gave {came}"
            with self.assertRaisesRegex(gesta.Problem, expected):
                next(store.follow_all())
            with self.assertRaisesRegex(gesta.Problem, expected):
                store.group("s", "g").join()

    def test_an_end_without_a_reason_is_said(self) -> None:
        _, followed = self.follow(messages(""), messages("id: d\nevent: caught_up\ndata: {}\n\n"))
        with self.assertLogs("gesta", "WARNING") as said:
            next(followed)
        self.assertIn("the subscription ended without a reason", said.output[0])

    def test_another_history_is_raised(self) -> None:
        _, followed = self.follow(problem("invalid_checkpoint", 409))
        with self.assertRaises(gesta.HistoryChanged):
            next(followed)
        error = json.dumps({"type": "urn:gesta:problem:stream_tombstoned", "title": "closed"})
        _, followed = self.follow(messages(f"event: error\ndata: {error}\n\n"))
        with self.assertRaises(gesta.StreamTombstoned):
            next(followed)

    def test_a_reader_that_fell_behind_is_told_or_gets_an_exception(self) -> None:
        text = "id: b\nevent: fell_behind\ndata: {}\n\n"
        _, followed = self.follow(messages(text))
        self.assertEqual(next(followed).kind, "fell_behind")
        with self.assertRaises(gesta.FellBehind) as raised:
            next(connect(Scripted(messages(text)).url).follow_all(behind="raise"))
        self.assertEqual(raised.exception.checkpoint, "b")


class Consuming(unittest.TestCase):
    """Goal: a consumer goes on whatever becomes of its server, and says which of its answers came too late."""

    def delivered(self) -> bytes:
        """An answer that gives the consumer an event."""
        event = {
            **{"stream": "s", "revision": 0, "log": 0, "position": 1, "id": "0192f0c1-2f3a-7c11-9c55-5d4e2a3b1c00"},
            **{"type": "t", "created": "2026-11-21T02:49:08.246789Z", "content_type": "application/json"},
            **{"data": 1, "metadata": None, "tags": []},
        }
        delivery = json.dumps({"delivery": 0, "retries": 0, "event": event})
        joined = 'event: joined\ndata: {"consumer": "c"}\n\n'
        return messages(f"{joined}event: event\ndata: {delivery}\n\n")

    def test_a_lost_ack_is_sent_again_and_a_lost_nack_is_not(self) -> None:
        for answers, expected in (("ack", (1, 0)), ("nack", (0, 1))):
            server = Scripted(self.delivered(), LOST, answer(200, {"answered": 1, "unknown": 0}))
            with connect(server.url).group("s", "g").join() as consumer:
                delivery = next(consumer)
                with self.assertLogs("gesta"):
                    self.assertEqual(getattr(consumer, answers)(delivery), gesta.Answered(*expected))
            self.assertEqual(len(server.asked), 2 + expected[0], answers)

    def test_waiting_for_a_place_in_the_group_is_said_once(self) -> None:
        full = problem("group_full", 409)
        server = Scripted(self.delivered(), full, full, self.delivered())
        with connect(server.url).group("s", "g").join() as consumer:
            next(consumer)
            with self.assertLogs("gesta", "WARNING") as said:
                next(consumer)
        self.assertEqual(sum("lets this client wait" in text for text in said.output), 1, said.output)

    def test_leaving_from_another_thread_ends_the_iteration(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(self.delivered())
                # Until the consumer is gone.
                while client.recv(65536):
                    pass

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        url = "http://127.0.0.1:%d" % listener.getsockname()[1]
        # What ends the iteration must not be that nothing came for long.
        consumer = connect(url, policy=Policy(silence_max=600)).group("s", "g").join()
        has_come = threading.Event()

        def iterate() -> None:
            for _ in consumer:
                has_come.set()

        iterating = threading.Thread(target=iterate, daemon=True)
        iterating.start()
        self.assertTrue(has_come.wait(60))
        consumer.leave()
        for thread in (iterating, serving):
            thread.join(60)
            self.assertFalse(thread.is_alive())
        listener.close()

    def test_a_page_of_groups_may_be_empty(self) -> None:
        server = Scripted(answer(200, {"groups": [], "end": False}))
        self.assertEqual(list(connect(server.url).list_groups()), [])

    def test_an_answer_to_a_server_that_is_gone_is_unknown(self) -> None:
        server = Scripted(self.delivered())
        with connect(server.url).group("s", "g").join() as consumer:
            delivered = next(consumer)
            self.assertEqual(delivered.event.data, 1)
            server.ended()
            with self.assertLogs("gesta"):
                self.assertEqual(consumer.ack(delivered), gesta.Answered(0, 1))


def event_document(revision: int, **payload: Any) -> Dict[str, Any]:
    """An event as the server shows it."""
    same = {"stream": "s", "log": 0, "id": str(uuid.uuid4()), "type": "t", "created": "2026-01-01T00:00:00Z"}
    payload = {"content_type": "application/json", **payload}
    return {**same, "revision": revision, "position": revision + 1, "tags": [], **payload}


class HostileEvents(unittest.TestCase):
    """Goal: nobody stops a reader with an event that is hard to read.

    What happened: one event with a number of 5,000 digits, or with metadata that nest deep, stopped every reader of all
    events, because the client took the server for one that is away, or failed with a bare `ValueError`.
    """

    DIGITS = "1" * 5000
    DEEP = base64.b64encode(b"[" * 100_000 + b"]" * 100_000).decode()
    LONG = "x" * 5_000_000

    def events(self) -> List[str]:
        """Hostile events between two good ones, as JSON."""
        hostile = [
            event_document(1, data="DIGITS"),
            event_document(2, data=1, metadata_base64=self.DEEP),
            event_document(3, data_base64=self.DEEP),
            event_document(4, data_base64=base64.b64encode(b"\xff{").decode()),
            event_document(5, data="\ud800"),
            event_document(6, data=self.LONG),
            event_document(7, data_base64=base64.b64encode(self.DIGITS.encode()).decode()),
        ]
        documents = [event_document(0, data=1), *hostile, event_document(8, data=2)]
        return [json.dumps(document).replace('"DIGITS"', self.DIGITS) for document in documents]

    def check(self, events: Iterable[gesta.RecordedEvent]) -> None:
        found = list(events)
        deep, digits = base64.b64decode(self.DEEP), Decimal(self.DIGITS)
        data = [1, digits, 1, deep, b"\xff{", "\ud800", self.LONG, digits, 2]
        self.assertEqual([event.data for event in found], data)
        self.assertEqual(found[2].metadata, deep)

    def test_a_page_with_hostile_events_is_read(self) -> None:
        page = '{"events":[%s],"end":true,"next":null,"last_revision":8,"checkpoint":"c"}' % ",".join(self.events())
        is_json = "Content-Type: application/json"
        server = Scripted(answer(200, page.encode(), is_json), answer(200, page.encode(), is_json))
        store = connect(server.url)
        self.check(store.read_stream("s"))
        self.check(store.read_all())
        server.ended()

    def test_hostile_events_are_followed(self) -> None:
        text = "".join(f"id: c{n}\nevent: event\ndata: {event}\n\n" for n, event in enumerate(self.events()))
        followed = connect(Scripted(messages(text)).url).follow_stream("s")
        events = [next(followed).event for _ in self.events()]
        self.check(event for event in events if event is not None)

    def test_hostile_events_are_delivered(self) -> None:
        delivered = enumerate(self.events())
        text = "".join(
            f'event: event\ndata: {{"delivery":{n},"retries":0,"event":{event}}}\n\n' for n, event in delivered
        )
        text = 'event: joined\ndata: {"consumer":"7"}\n\n' + text
        with connect(Scripted(messages(text)).url).group("s", "g").join() as consumer:
            self.check([next(consumer).event for _ in self.events()])

    def test_what_cannot_be_read_is_a_problem_of_the_answer(self) -> None:
        broken = answer(200, b'{"events":[', "Content-Type: application/json; charset=utf-8")
        server = Scripted(broken)
        with self.assertRaises(gesta.Problem) as raised:
            list(connect(server.url).read_stream("s"))
        self.assertNotIsInstance(raised.exception, gesta.Unavailable)
        self.assertEqual((raised.exception.title, raised.exception.status), ("The answer cannot be read", 200))
        self.assertEqual(len(server.ended()), 1)
        with self.assertRaises(gesta.Problem) as raised:
            next(connect(Scripted(messages("event: event\ndata: {\n\n")).url).follow_stream("s"))
        self.assertEqual(raised.exception.title, "The answer cannot be read")


class Arguments(unittest.TestCase):
    """Goal: arguments that cannot be meant are refused, with the value and the rule."""

    def test_secrets_do_not_travel_as_plain_text(self) -> None:
        with self.assertRaisesRegex(ValueError, "http://a:80 must begin with https"):
            gesta.connect("http://a", token="t")
        gesta.connect("http://a", token="t", plain_http="anywhere")
        for local in ("http://localhost:1", "http://127.0.0.2:1", "http://[::1]:1"):
            gesta.connect(local, user="u", password="p")

    def test_passwords_are_not_shown(self) -> None:
        for start in ("http://admin:se#cret@", "http://admin:1/secret@", "admin:secret@", "https://admin:se?cret@"):
            for host in ("host:2113", "host:99999"):
                with self.assertRaisesRegex(ValueError, f"address of {host} must not contain a user") as raised:
                    gesta.connect(start + host)
                self.assertNotIn("cret", "".join(traceback.format_exception_only(ValueError, raised.exception)))
                self.assertIsNone(raised.exception.__cause__)

    def test_what_contradicts_itself_is_refused(self) -> None:
        for arguments in ({"user": "u"}, {"token": "t", "user": "u", "password": "p"}, {"token": "a\nb"}):
            with self.assertRaises(ValueError):
                gesta.connect("http://localhost", **arguments)  # type: ignore[arg-type]
        for url in ("", "localhost:1", "ftp://a", "http://a:b", "http://u:p@a", "http://a?b"):
            with self.assertRaises(ValueError):
                gesta.connect(url)
        with self.assertRaisesRegex(ValueError, "ca_file 'missing.pem' cannot be used: No such file"):
            gesta.connect("https://localhost", ca_file="missing.pem")
        with self.assertRaises(ValueError):
            connect(REFUSED_ADDRESS).append("s", [EventData("t", float("nan"))])
        with self.assertRaises(TypeError):
            connect(REFUSED_ADDRESS).append("s", [EventData("t", 1, tags="ab")])


class Packages(unittest.TestCase):
    """Goal: whoever has a package has the license of the repository."""

    def test_the_license_is_that_of_the_repository(self) -> None:
        clients = Path(__file__).resolve().parents[2]
        license = (clients.parent / "LICENSE").read_bytes()
        for package in ("python", "typescript"):
            self.assertEqual((clients / package / "LICENSE").read_bytes(), license, package)


def load_tests(_loader: object, tests: unittest.TestSuite, _pattern: object) -> unittest.TestSuite:
    """The examples of the modules too."""
    for module in pkgutil.iter_modules(gesta.__path__, "gesta."):
        tests.addTests(doctest.DocTestSuite(importlib.import_module(module.name)))
    return tests


if __name__ == "__main__":
    unittest.main()
