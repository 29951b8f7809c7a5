/** What goes wrong with connections, in words. */

/** What came is no answer of this API, as where a proxy in between answers. */
export class NoAnswerOfGesta extends Error {}

/** Nothing came in time. */
export class Silence extends Error {}

interface Coded {
  readonly code?: unknown;
  readonly message?: unknown;
}

/** `fetch` hides the cause of its errors. */
function causeOf(error: unknown): Coded {
  return ((error as { cause?: unknown }).cause ?? error) as Coded;
}

const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: "connection refused",
  ECONNRESET: "the connection was reset",
  EHOSTUNREACH: "no way to this address",
  ENETUNREACH: "no way to this address",
  ENOTFOUND: "there is no such host",
  EAI_AGAIN: "the name of the host cannot be looked up",
  UND_ERR_CONNECT_TIMEOUT: "no connection in time",
  UND_ERR_SOCKET: "the connection ended before the answer came",
};

/** With these there was no connection. */
const NOT_CONNECTED = [
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "EAI_AGAIN",
  "UND_ERR_CONNECT_TIMEOUT",
];

/** What TLS says of a beginning that cannot be agreed upon; older versions say it only in the message. */
const NO_TLS =
  /wrong.version.number|packet.length.too.long|http.request|unsupported.protocol|protocol.version|handshake.failure/i;

/** A certificate that is not believed: the connection is given up before anything of a call is sent. */
function isOfCertificate(code: string): boolean {
  return !code.startsWith("ERR_SSL") && /CERT|SELF_SIGNED|UNABLE_TO_|HOSTNAME_MISMATCH|INVALID_CA|ISSUER/.test(code);
}

/** Whether an error is one of a connection, and not a mistake of a program. */
export function isOfConnection(error: unknown): boolean {
  if (error instanceof NoAnswerOfGesta || error instanceof Silence) return true;
  if (!(error instanceof Error)) return false;
  return typeof causeOf(error).code === "string" || error.cause !== undefined || error.name === "AbortError";
}

/** Whether the server has not shown who it is. */
export function isNotTrusted(error: unknown): boolean {
  return isOfCertificate(String(causeOf(error).code ?? ""));
}

/** Whether the server has begun no TLS that this client knows. */
export function isNoTls(error: unknown): boolean {
  const { code, message } = causeOf(error);
  return /^(ERR_SSL|EPROTO)/.test(String(code ?? "")) && NO_TLS.test(`${code} ${message}`);
}

/** Whether there was no connection, so that nothing of a call has reached the server. */
export function isNotSent(error: unknown): boolean {
  return NOT_CONNECTED.includes(String(causeOf(error).code ?? ""));
}

/** What went wrong, for people. */
export function reasonOf(error: unknown): string {
  const cause = causeOf(error);
  const [code, message] = [String(cause.code ?? ""), String(cause.message ?? cause)];
  if (isOfCertificate(code)) return `its certificate is not trusted: ${message} (caFile names the authority to trust)`;
  // The message is a line of a library for each layer, and says less than the code.
  if (code.startsWith("ERR_SSL") || isNoTls(error)) return `no TLS (${code}); is its URL http:// and not https://?`;
  return REASONS[code] ?? message;
}
