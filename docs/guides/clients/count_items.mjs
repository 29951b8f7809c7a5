// A consumer that survives restarts: counts how often each item was put into any cart.
//
// The counts and the checkpoint lie in one file that is replaced as a whole, so each event is counted once.
//
// Usage: node count_items.mjs http://127.0.0.1:2113 counts.json    follows the store until it is stopped
//        node count_items.mjs --show counts.json                   prints the counts

import { existsSync } from "node:fs";
import { open, readFile, rename } from "node:fs/promises";
import { Problem, follow } from "./gesta.mjs";

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

async function count(base, path, state) {
  const parameters = { category: "cart", type: "item-added" };
  for await (const { kind, checkpoint, document } of follow(base, { after: state.checkpoint, parameters })) {
    if (kind === "event") {
      const { item } = document.data;
      state.counts[item] = (state.counts[item] ?? 0) + 1;
    }
    state.checkpoint = checkpoint;
    await save(path, state);
    if (kind === "caught_up") console.log("caught up");
  }
}

const [base, path] = process.argv.slice(2);
let state = existsSync(path) ? JSON.parse(await readFile(path, "utf8")) : structuredClone(nothing);
if (base === "--show") {
  console.log(JSON.stringify(state.counts, Object.keys(state.counts).sort()));
} else {
  for (;;) {
    try {
      await count(base, path, state);
    } catch (failure) {
      if (!(failure instanceof Problem && failure.kind === "invalid_checkpoint")) throw failure;
      // The store was restored, and positions are used again: the counts may hold events that are gone.
      console.log("counting again from the start");
      state = structuredClone(nothing);
      await save(path, state);
    }
  }
}
