/** Making the connection to a store: its servers, who calls, and whom the caller believes. */

import { fetchBelieving, type Fetch } from "./authority.js";
import { checked, type Names } from "./options.js";
import { DEFAULT_POLICY, type Policy } from "./retry.js";
import { Servers, isReadByOthers, parseServer } from "./servers.js";
import { Store } from "./store.js";
import { Transport } from "./transport.js";

export interface ConnectOptions {
  /** A token, as `gesta token create` prints it. */
  readonly token?: string | undefined;
  readonly user?: string | undefined;
  readonly password?: string | undefined;
  /** The file with the certificate of the authority to believe, in place of the system's. */
  readonly caFile?: string | undefined;
  /** Whether a token or a password may go to servers on other machines over `http`. */
  readonly plainHttp?: "loopback" | "anywhere";
  /** How patient the client is. */
  readonly policy?: Partial<Policy>;
  /** Takes what the client has to say while a server is away; `console.warn` if absent. */
  readonly warn?: (text: string) => void;
}

const CONNECT: Names<ConnectOptions> = {
  token: true,
  user: true,
  password: true,
  caFile: true,
  plainHttp: true,
  policy: true,
  warn: true,
};
const POLICY: Names<Policy> = {
  giveUpAfter: true,
  firstPause: true,
  longestPause: true,
  answerMax: true,
  silenceMax: true,
};

/**
 * The store behind one or more servers; several are the nodes of one cluster. Nothing is sent yet.
 *
 * One server is asked until it does not answer, then the next one.
 *
 * ```ts
 * connect("http://127.0.0.1:2113");
 * connect(["https://a:2113", "https://b:2113"], { token, caFile: "ca.pem" });
 * ```
 */
export function connect(servers: string | readonly string[], options: ConnectOptions = {}): Store {
  checked("connect", options, CONNECT);
  const given = (Array.isArray(servers) ? servers : [servers]).map(parseServer);
  if (given.length === 0) throw new TypeError("servers must name one at least, as http://127.0.0.1:2113");
  if (new Set(given).size < given.length) {
    throw new TypeError(`servers must be named once each: ${given.join(", ")}`);
  }
  const authorization = authorizationOf(options);
  for (const server of given) {
    if (authorization !== undefined && options.plainHttp !== "anywhere" && isReadByOthers(server)) {
      throw new TypeError(
        `${server} must begin with https://, for a token or a password would travel there as plain text; ` +
          'where nobody can listen on the way, plainHttp: "anywhere" allows it',
      );
    }
  }
  const warn = options.warn ?? ((text) => console.warn(`gesta: ${text}`));
  const policy = { ...DEFAULT_POLICY, ...checked<Partial<Policy>>("policy", options.policy ?? {}, POLICY) };
  return new Store(new Transport(new Servers(given, warn), policy, fetchOf(options.caFile), authorization));
}

/** The global `fetch`, or for `https` one that believes an authority of its own. */
function fetchOf(caFile: string | undefined): Fetch {
  if (caFile === undefined) return fetch;
  const believing = fetchBelieving(caFile);
  return (address, init) => (address.startsWith("https:") ? believing(address, init) : fetch(address, init));
}

/** The header that says who calls. */
function authorizationOf({ token, user, password }: ConnectOptions): string | undefined {
  if ((user === undefined) !== (password === undefined)) {
    throw new TypeError("user and password must be given together");
  }
  if (token === undefined) {
    return user === undefined ? undefined : `Basic ${Buffer.from(`${user}:${password}`).toString("base64")}`;
  }
  if (user !== undefined) throw new TypeError("token must not be given beside user and password");
  if (!/^[!-~]+$/.test(token.trim())) {
    throw new TypeError("token must be printable ASCII text, as `gesta token create` prints it");
  }
  return `Bearer ${token.trim()}`;
}
