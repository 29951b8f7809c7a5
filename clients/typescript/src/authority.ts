/** `fetch` that believes an authority of its own: the global one can be told only by the environment of the process. */

import { readFileSync } from "node:fs";
import { Agent, request } from "node:https";
import { Readable } from "node:stream";
import type { ReadableStream } from "node:stream/web";

import { NoAnswerOfGesta } from "./reasons.js";

/** The part of `fetch` that this client uses. */
export type Fetch = (address: string, init: FetchInit) => Promise<Response>;

export interface FetchInit {
  readonly method: string;
  readonly headers: Record<string, string>;
  readonly body?: string;
  readonly signal: AbortSignal;
  readonly redirect: "manual";
}

/** Makes a `fetch` for `https` that believes the authority in this file, in place of the system's. */
export function fetchBelieving(caFile: string): Fetch {
  const agent = new Agent({ keepAlive: true, ca: readFileSync(caFile) });
  return (address, { method, headers, body, signal }) =>
    new Promise((resolve, reject) => {
      const length = body === undefined ? {} : { "Content-Length": String(Buffer.byteLength(body)) };
      const sent = request(address, { method, headers: { ...headers, ...length }, agent, signal }, (answer) => {
        const received = new Headers();
        for (const [name, value] of Object.entries(answer.headers)) received.set(name, String(value));
        const status = answer.statusCode ?? 0;
        if (status < 200 || status > 599) {
          answer.destroy();
          reject(new NoAnswerOfGesta(`HTTP status ${status}`));
          return;
        }
        const hasBody = ![204, 205, 304].includes(status);
        const stream = hasBody ? (Readable.toWeb(answer) as ReadableStream<Uint8Array>) : null;
        if (!hasBody) answer.resume();
        resolve(new Response(stream, { status, headers: received }));
      });
      sent.on("error", reject);
      sent.end(body);
    });
}
