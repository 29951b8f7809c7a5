// A consumer that survives restarts: counts how often each item was put into any cart.
//
// The counts and the checkpoint lie in one file that is replaced as a whole, so each event is counted once.
//
// Usage: node count_items.mjs http://127.0.0.1:2113 counts.json    follows the store until it is stopped
//        node count_items.mjs --show counts.json                   prints the counts

import { existsSync } from "node:fs";
import { open, readFile, rename } from "node:fs/promises";
import { HistoryChanged, connect } from "gesta-client";

const nothing = { checkpoint: "start", counts: {} };

/** Writes a new file, makes it durable and puts it in the place of the old one. */
async function save(path, state) {
  const file = await open(`${path}.new`, "w");
  try {
    await file.writeFile(JSON.stringify(state));
    await file.sync();
  } finally {
    await file.close();
  }
  await rename(`${path}.new`, path);
}

async function count(store, path, state) {
  const filter = { categories: ["cart"], types: ["item-added"] };
  for await (const message of store.followAll({ after: state.checkpoint, filter })) {
    if (message.kind === "event") {
      const { item } = message.event.data;
      state.counts[item] = (state.counts[item] ?? 0) + 1;
    }
    state.checkpoint = message.checkpoint;
    await save(path, state);
    if (message.kind === "caught_up") console.log("caught up");
  }
}

const [server, path] = process.argv.slice(2);
if (path === undefined) {
  console.error("Usage: node count_items.mjs http://127.0.0.1:2113 counts.json, or --show counts.json");
  process.exit(2);
}
let state = existsSync(path) ? JSON.parse(await readFile(path, "utf8")) : structuredClone(nothing);
if (server === "--show") {
  console.log(JSON.stringify(state.counts, Object.keys(state.counts).sort()));
} else {
  const store = connect(server, { token: process.env.GESTA_TOKEN });
  for (;;) {
    try {
      await count(store, path, state);
    } catch (error) {
      if (!(error instanceof HistoryChanged)) throw error;
      // The store was restored, and positions are used again: the counts may hold events that are gone.
      console.log("counting again from the start");
      state = structuredClone(nothing);
      await save(path, state);
    }
  }
}
