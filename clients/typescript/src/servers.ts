/** The servers that a client was given, and which of them is asked. */

import type { Problem } from "./errors.js";

/** Why a call waits is said again after so many milliseconds. */
const SAID_AGAIN_AFTER = 60_000;

/** The base address of a server, without a slash at its end. */
export type Server = string;

/** Reads the address of a server. */
export function parseServer(address: string): Server {
  if (typeof address !== "string") {
    // A program in JavaScript has nobody who checks types: mostly an argument or a variable is missing.
    throw new TypeError(`the address of a server must be a text such as http://127.0.0.1:2113, found ${String(address)}`);
  }
  if (address.includes("@")) {
    // Wherever it stands: a password with a `#` or a `/` is not read as one. Never shown, for messages end up in logs.
    const host = address.slice(address.lastIndexOf("@") + 1);
    throw new TypeError(`the address of ${host} must not contain a user or a password: give user and password`);
  }
  const rule = `${JSON.stringify(address)} is not the address of a server: it must be as http://127.0.0.1:2113`;
  let url: URL;
  try {
    url = new URL(address);
  } catch {
    throw new TypeError(rule);
  }
  if (!["http:", "https:"].includes(url.protocol) || url.search || url.hash) throw new TypeError(rule);
  return (url.origin + url.pathname).replace(/\/+$/, "");
}

/** Whether everybody between this machine and a server could read what is sent to it. */
export function isReadByOthers(server: Server): boolean {
  const { protocol, hostname } = new URL(server);
  const isOnThisMachine = hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
  return protocol === "http:" && !isOnThisMachine;
}

/**
 * The servers in their order. One is asked until it fails, then the next one.
 *
 * Each reason why a server does not answer is said once, until it answers again.
 */
export class Servers {
  #present = 0;
  readonly #troubles = new Map<Server, Set<string>>();

  readonly #waits = new Map<string, number>();

  constructor(
    readonly given: readonly Server[],
    readonly warn: (text: string) => void,
  ) {}

  /** The server that is asked now. */
  present(): Server {
    return this.given[this.#present] as Server;
  }

  /** The next server. */
  after(server: Server): Server {
    return this.given[(this.given.indexOf(server) + 1) % this.given.length] as Server;
  }

  /** Notes that a server answers. */
  answered(server: Server): void {
    this.#troubles.delete(server);
  }

  /** Notes that a server does not answer, says so, and turns to the next one, unless that is hopeless. */
  failed(server: Server, reason: string, isHopeless = false): void {
    if (this.present() === server) this.#present = (this.#present + 1) % this.given.length;
    const said = this.#troubles.get(server) ?? new Set();
    this.#troubles.set(server, said);
    if (said.has(reason)) return;
    said.add(reason);
    this.warn(`no answer from ${server}: ${reason}${isHopeless ? "" : "; trying again"}`);
  }

  /** Says why a server that answers is asked again and again, but not each time. */
  waits(server: Server, problem: Problem): void {
    const key = `${server} ${problem.kind}`;
    if (Date.now() - (this.#waits.get(key) ?? -Infinity) <= SAID_AGAIN_AFTER) return;
    this.#waits.set(key, Date.now());
    this.warn(`${server} lets this client wait: ${problem.message}`);
  }
}
