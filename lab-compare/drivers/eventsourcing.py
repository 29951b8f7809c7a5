"""Appends with Python's eventsourcing library; see driver.rs for what it reads and writes.

Processes, as the interpreter runs one thread at a time; in each so many threads that there is one per worker.
"""

import json
import multiprocessing
import os
import sys
import threading
import time
import uuid
from collections import Counter

from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresFactory

TOPIC = "lab-event"
FIRST_VERSION = 1
# No more processes than this, however many processors there are.
PROCESSES_MAX = 8
# A worker with so many failures in a row gives up.
FAILURES_MAX = 10


def recorder(task, connections, create):
    place = task["postgres"]
    factory = PostgresFactory(
        {
            "POSTGRES_DBNAME": place["name"],
            "POSTGRES_HOST": place["host"],
            "POSTGRES_PORT": str(place["port"]),
            "POSTGRES_USER": place["user"],
            "POSTGRES_PASSWORD": "unused",
            "POSTGRES_POOL_SIZE": str(connections),
            "POSTGRES_MAX_OVERFLOW": "0",
            "POSTGRES_ENABLE_DB_FUNCTIONS": "yes" if task["options"]["db_functions"] else "no",
            "CREATE_TABLE": "yes" if create else "no",
        }
    )
    made = factory.application_recorder()
    if not create:
        # The composite type of events exists by now.
        made.datastore.register_type_adapters()
    return made


def payload(mark, length):
    head = '{"mark":"' + mark + '","text":"'
    return (head + "x" * (length - len(head) - 2) + '"}').encode()


class Worker:
    def __init__(self, task, store):
        self.store = store
        self.cell = task["cell"]
        self.payload_bytes = task["workload"]["payload_bytes"]
        # Of each stream: its id, events acknowledged, events sent.
        self.streams = [[uuid.uuid4(), 0, 0] for _ in range(task["workload"]["streams_per_worker"])]
        self.full = []
        self.latencies = Counter()
        self.errors = Counter()
        self.appends = 0

    def batch(self, stream):
        identity, begin, _ = stream
        name = identity.hex
        return [
            StoredEvent(
                originator_id=identity,
                originator_version=FIRST_VERSION + revision,
                topic=TOPIC,
                state=payload(f"{name}/{revision}", self.payload_bytes),
            )
            for revision in range(begin, begin + self.cell["events"])
        ]

    def run(self, begin, end):
        turn = 0
        failures = 0
        now = time.monotonic
        while now() < end and failures < FAILURES_MAX:
            at = turn % len(self.streams)
            turn += 1
            stream = self.streams[at]
            batch = self.batch(stream)
            stream[2] = stream[1] + len(batch)
            start = now()
            try:
                self.store.insert_events(batch)
            except Exception as error:  # Whatever it is, it is counted and told.
                self.errors[type(error).__name__] += 1
                failures += 1
                self.replace(at)
                continue
            answered = now()
            failures = 0
            stream[1] = stream[2]
            if begin <= answered < end:
                self.appends += 1
                self.latencies[max(1, round((answered - start) * 1e6))] += 1
            if stream[1] >= self.cell["events_per_stream"]:
                self.replace(at)

    def replace(self, at):
        self.full.append(self.streams[at])
        self.streams[at] = [uuid.uuid4(), 0, 0]

    def claims(self):
        return [(s[0].hex, s[1], s[2]) for s in self.full + self.streams if s[2] > 0]


def process(task, workers, pipe):
    """One process: says that it is ready, is told when the clock starts, tells what its workers did."""
    store = recorder(task, workers, create=False)
    store.datastore.pool.open(wait=True)
    # Every thread's connection is made before the clock starts.
    store.datastore.pool.wait()
    loops = [Worker(task, store) for _ in range(workers)]
    pipe.send("ready")
    begin, end = pipe.recv()
    threads = [threading.Thread(target=loop.run, args=(begin, end)) for loop in loops]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, begin - time.monotonic()))
    spent = time.process_time()
    for thread in threads:
        thread.join()
    spent = time.process_time() - spent
    latencies, errors = Counter(), Counter()
    for loop in loops:
        latencies.update(loop.latencies)
        errors.update(loop.errors)
    pipe.send(
        {
            "appends": sum(loop.appends for loop in loops),
            "latencies": latencies,
            "errors": errors,
            "cpu_seconds": spent,
            "streams": [claim for loop in loops for claim in loop.claims()],
        }
    )
    pipe.close()
    store.datastore.close()


def tell(**what):
    print(json.dumps(what), flush=True)


def main():
    task = json.load(sys.stdin)
    workload, cell = task["workload"], task["cell"]
    recorder(task, 1, create=True).datastore.close()
    count = min(cell["workers"], len(os.sched_getaffinity(0)), PROCESSES_MAX)
    shares = [cell["workers"] // count + (index < cell["workers"] % count) for index in range(count)]
    context = multiprocessing.get_context("spawn")
    pipes = []
    for share in shares:
        here, there = context.Pipe()
        context.Process(target=process, args=(task, share, there), daemon=True).start()
        there.close()
        pipes.append(here)
    for pipe in pipes:
        pipe.recv()
    # The monotonic clock is the same for all processes of the machine.
    begin = time.monotonic() + workload["warm_up_seconds"]
    end = begin + workload["seconds"]
    for pipe in pipes:
        pipe.send((begin, end))
    time.sleep(max(0.0, begin - time.monotonic()))
    tell(at="measuring")
    time.sleep(max(0.0, end - time.monotonic()))
    tell(at="measured")
    done = [pipe.recv() for pipe in pipes]
    latencies, errors = Counter(), Counter()
    for one in done:
        latencies.update(one["latencies"])
        errors.update(one["errors"])
    appends = sum(one["appends"] for one in done)
    tell(
        at="result",
        appends=appends,
        events=appends * cell["events"],
        bytes=appends * cell["events"] * workload["payload_bytes"],
        seconds=float(workload["seconds"]),
        latencies_us=sorted(latencies.items()),
        errors=errors,
        cpu_seconds=sum(one["cpu_seconds"] for one in done),
        streams=[claim for one in done for claim in one["streams"]],
    )


if __name__ == "__main__":
    main()
