// What the compiler must take, and what it must refuse, in a program that uses the package.

import { EventData, Problem, connect, type Message, type RecordedEvent } from "gesta-client";

interface ItemAdded {
  readonly item: string;
}

const store = connect(["http://127.0.0.1:2113"], { token: "t", policy: { giveUpAfter: 1_000 } });

export async function items(cart: string): Promise<string[]> {
  const found: string[] = [];
  for await (const event of store.readStream<ItemAdded>(cart)) found.push(event.data.item);
  return found;
}

export function added(message: Message<ItemAdded>): RecordedEvent<ItemAdded> | undefined {
  return message.kind === "event" ? message.event : undefined;
}

export async function append(item: string): Promise<number> {
  // @ts-expect-error: without an id of its own a retry would store it again
  await store.append("cart-1", [{ type: "item-added", data: { item } }]);
  // @ts-expect-error: there is no such claim
  await store.append("cart-1", [new EventData("item-added", { item })], { expected: "nostream" });
  // @ts-expect-error: there is no such option
  await store.append("cart-1", [new EventData("item-added", { item })], { expectd: 7 });
  const stored = await store.append("cart-1", [new EventData("item-added", { item })], { expected: 7 });
  return stored.lastRevision;
}

export function actual(error: unknown): number | null | undefined {
  return error instanceof Problem ? error.document.actual : undefined;
}
