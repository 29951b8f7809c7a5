// A server that answers as it is told, one connection after the other, and remembers what it was asked.

import { createServer } from "node:net";
import { once } from "node:events";

/** Instead of an answer: the connection is closed. */
export const LOST = "";

/** A whole answer, after which the connection is closed. */
export function answer(status, document, ...headers) {
  const body = typeof document === "string" ? document : JSON.stringify(document);
  const length = `Content-Length: ${Buffer.byteLength(body)}`;
  return [`HTTP/1.1 ${status} X`, length, "Connection: close", ...headers, "", body].join("\r\n");
}

/** A problem document. */
export function problem(kind, status, members = {}, ...headers) {
  const type = `urn:gesta:problem:${kind}`;
  return answer(status, { type, title: "A title", status, detail: "a detail", ...members }, ...headers);
}

/** Server-sent events, after which the connection is closed. */
export function messages(text) {
  return `HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n${text}`;
}

/** Starts a server. Each answer is given to one request; whoever comes then is refused. */
export async function scripted(...answers) {
  const asked = [];
  const server = createServer((socket) => {
    let received = "";
    socket.setEncoding("latin1");
    socket.on("error", () => undefined);
    socket.on("data", (text) => {
      received += text;
      const end = received.indexOf("\r\n\r\n");
      const length = Number(/content-length: (\d+)/i.exec(received)?.[1] ?? 0);
      // A connection by TLS begins with this byte.
      const isTls = received.startsWith("\x16");
      if (!isTls && (end < 0 || received.length < end + 4 + length)) return;
      asked.push({ line: received.slice(0, received.indexOf(" HTTP/1.1")), body: received.slice(end + 4) });
      const given = answers[asked.length - 1];
      if (asked.length >= answers.length) server.close();
      socket.end(given);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { url: `http://127.0.0.1:${server.address().port}`, asked, close: () => server.close() };
}

/** An address at which nobody listens: no port that the system gives to others, and none that `fetch` refuses. */
export const REFUSED_ADDRESS = "http://127.0.0.1:2";
