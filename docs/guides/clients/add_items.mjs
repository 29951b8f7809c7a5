// Puts items into a cart, one event each, and says where each one is stored.
//
// Usage: node add_items.mjs http://127.0.0.1:2113 CART ITEM...

import { append } from "./gesta.mjs";

const [base, cart, ...items] = process.argv.slice(2);
for (const item of items) {
  const answer = await append(base, `cart-${cart}`, [{ type: "item-added", data: { item } }]);
  console.log(`${item}: revision ${answer.first_revision}`);
}
