// A web page of what is put into carts most often, kept up to date by the events of a store.
//
// Usage: node best_sellers.mjs http://127.0.0.1:2113 [PORT]

import { createServer } from "node:http";
import { connect } from "gesta-client";

const [server, port = "8000"] = process.argv.slice(2);
if (!server) {
  console.error("usage: node best_sellers.mjs http://127.0.0.1:2113 [PORT]");
  process.exit(2);
}
const times = new Map();
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

const page = createServer((_request, answer) => {
  const rows = [...times].sort((a, b) => b[1] - a[1]).map(([item, count]) => `<li>${escaped(item)}: ${count}</li>`);
  answer.setHeader("Content-Type", "text/html; charset=utf-8");
  answer.end(`<!doctype html><meta http-equiv="refresh" content="1"><h1>Best sellers</h1><ol>${rows.join("")}</ol>`);
});
page.listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${page.address().port}`));

// All events from the first one on, and then new ones as they come.
const filter = { categories: ["cart"], types: ["item-added"] };
const store = connect(server, { token: process.env.GESTA_TOKEN });
for await (const message of store.followAll({ filter })) {
  if (message.kind !== "event") continue;
  const { item } = message.event.data;
  times.set(item, (times.get(item) ?? 0) + 1);
}
