// Appends with Emmett's PostgreSQL event store; see driver.rs for what it reads and writes.
// The first argument is the folder of the installed modules.

import { randomUUID } from 'node:crypto';
import { readFileSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const EVENT_TYPE = 'lab-event';
// A worker with so many failures in a row gives up.
const FAILURES_MAX = 10;

const installed = createRequire(path.join(path.resolve(process.argv[2]), 'any.cjs'));
const { getPostgreSQLEventStore } = installed('@event-driven-io/emmett-postgresql');
const pg = installed('pg');

const task = JSON.parse(readFileSync(0, 'utf8'));
const { workload, cell, postgres } = task;

const tell = (what) => {
  let text = Buffer.from(JSON.stringify(what) + '\n');
  while (text.length > 0) {
    try {
      text = text.subarray(writeSync(1, text));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
};

const until = (moment) =>
  new Promise((resolve) => setTimeout(resolve, Math.max(0, moment - performance.now())));

const newStream = () => ({ name: `lab-${randomUUID().replaceAll('-', '')}`, acknowledged: 0, sent: 0 });

const data = (mark) => {
  const fixed = JSON.stringify({ mark, text: '' }).length;
  return { mark, text: 'x'.repeat(Math.max(0, workload.payload_bytes - fixed)) };
};

const batch = (stream) =>
  Array.from({ length: cell.events }, (_, index) => ({
    type: EVENT_TYPE,
    data: data(`${stream.name}/${stream.acknowledged + index}`),
  }));

const increment = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);

const run = { appends: 0, latencies: new Map(), errors: new Map(), streams: [] };

const work = async (store, begin, end) => {
  const streams = Array.from({ length: workload.streams_per_worker }, newStream);
  const replace = (at) => {
    run.streams.push(streams[at]);
    streams[at] = newStream();
  };
  let failures = 0;
  for (let turn = 0; performance.now() < end && failures < FAILURES_MAX; turn += 1) {
    const at = turn % streams.length;
    const stream = streams[at];
    const events = batch(stream);
    stream.sent = stream.acknowledged + events.length;
    const start = performance.now();
    try {
      await store.appendToStream(stream.name, events, {
        expectedStreamVersion: BigInt(stream.acknowledged),
      });
    } catch (error) {
      increment(run.errors, error?.code ?? error?.name ?? 'error');
      failures += 1;
      replace(at);
      continue;
    }
    const answered = performance.now();
    failures = 0;
    stream.acknowledged = stream.sent;
    if (answered >= begin && answered < end) {
      run.appends += 1;
      increment(run.latencies, Math.max(1, Math.round((answered - start) * 1000)));
    }
    if (stream.acknowledged >= cell.events_per_stream) replace(at);
  }
  run.streams.push(...streams);
};

const pool = new pg.Pool({ connectionString: postgres.url, max: cell.workers });
const store = getPostgreSQLEventStore(postgres.url, { connectionOptions: { pool } });
await store.schema.migrate();
// Every worker's connection is made before the clock starts.
const clients = await Promise.all(Array.from({ length: cell.workers }, () => pool.connect()));
clients.forEach((client) => client.release());

const begin = performance.now() + workload.warm_up_seconds * 1000;
const end = begin + workload.seconds * 1000;
const workers = Array.from({ length: cell.workers }, () => work(store, begin, end));
await until(begin);
const spent = process.cpuUsage();
tell({ at: 'measuring' });
await until(end);
const { user, system } = process.cpuUsage(spent);
tell({ at: 'measured' });
await Promise.all(workers);

tell({
  at: 'result',
  appends: run.appends,
  events: run.appends * cell.events,
  bytes: run.appends * cell.events * workload.payload_bytes,
  seconds: workload.seconds,
  latencies_us: [...run.latencies],
  errors: Object.fromEntries(run.errors),
  cpu_seconds: (user + system) / 1e6,
  streams: run.streams
    .filter((stream) => stream.sent > 0)
    .map((stream) => [stream.name, stream.acknowledged, stream.sent]),
});
await store.close();
await pool.end();
process.exit(0);
