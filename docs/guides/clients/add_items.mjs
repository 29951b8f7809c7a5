// Puts items into a cart, one event each, and says where each one is stored.
//
// Usage: node add_items.mjs http://127.0.0.1:2113 CART ITEM...

import { EventData, connect } from "gesta-client";

const [server, cart, ...items] = process.argv.slice(2);
if (items.length === 0) {
  console.error("Usage: node add_items.mjs http://127.0.0.1:2113 CART ITEM...");
  process.exit(2);
}
const store = connect(server, { token: process.env.GESTA_TOKEN });
for (const item of items) {
  const stored = await store.append(`cart-${cart}`, [new EventData("item-added", { item })]);
  console.log(`${item}: revision ${stored.firstRevision}`);
}
