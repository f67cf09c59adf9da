// Requests to the APIs of this port. All paths are relative to the page, because a proxy may serve
// the port below a path.
import { parseExactly } from "./exact_json";

/** An answer that is not a success, with the text that the server gives for people. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** The whole answer, where it has more than a text for people. */
    readonly body?: unknown,
  ) {
    super(message);
  }
}

export function address(path: string): string {
  return new URL(path.replace(/^\//, ""), document.baseURI).href;
}

/** Returns the text for people of an error's body, in any of the forms that the APIs have. */
export function errorText(status: number, body: unknown): string {
  if (body !== null && typeof body === "object") {
    const found = body as Record<string, unknown>;
    for (const name of ["errorMessage", "error", "message"]) {
      const text = found[name];
      if (typeof text === "string" && text !== "") return text;
    }
  }
  if (typeof body === "string" && body !== "") return body;
  if (status === 0) return "the server does not answer: it is restarting, or the network is down";
  return `the server answered with status ${status}: its log has the reason`;
}

/** The broker, as the router forwards to it. */
export const BROKER = "/penstock/v1/broker";

/** Without it, a browser would ask for a password in a window of its own after an answer 401. */
export const FROM_SCRIPT = { "X-Requested-With": "XMLHttpRequest" };

export type Params = Record<string, string | number | boolean | undefined>;

export function withParams(path: string, params: Params): string {
  const kept = Object.entries(params).filter(([, value]) => value !== undefined && value !== "");
  if (kept.length === 0) return path;
  const query = kept.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`);
  return `${path}?${query.join("&")}`;
}

/** How far the clock of the server is ahead of that of this browser, in ms. */
let aheadMs = 0;
const AGREES_MS = 2_000; // the header has whole seconds, and may be a second old

/** The time of the server, to compare with the times of its answers, in ms. */
export const serverNow = (): number => Date.now() + aheadMs;

function setClock(response: Response): void {
  const ahead = Date.parse(response.headers.get("Date") ?? "") + AGREES_MS / 2 - serverNow();
  if (Math.abs(ahead) > AGREES_MS) aheadMs += ahead;
}

/** Waits for an answer or its body. Throws ApiError with status 0 if the connection ends before. */
async function reached<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, errorText(0, null));
  }
}

async function bodyOf(response: Response): Promise<unknown> {
  const text = await reached(response.text());
  if (text === "") return null;
  return (response.headers.get("content-type") ?? "").includes("json") ? asJson(text) : text;
}

/** Returns the value of a JSON text, and the text if it is none. */
export function asJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

async function ask(path: string, init: RequestInit): Promise<Response> {
  const response = await reached(fetch(address(path), init));
  setClock(response);
  if (!response.ok) {
    const detail = response.headers.get("X-Penstock-Detail");
    const found = await bodyOf(response);
    throw new ApiError(response.status, detail ?? errorText(response.status, found), found);
  }
  return response;
}

/** Sends a request and returns the JSON or text of its answer. Throws ApiError.
 *
 * A body of another type than JSON is a text, and is sent as it is.
 */
export async function call<T>(
  method: "GET" | "POST" | "PUT" | "DELETE",
  path: string,
  body?: unknown,
  signal?: AbortSignal,
  type?: string,
): Promise<T> {
  return (await bodyOf(await ask(path, initOf(method, body, signal, type)))) as T;
}

function initOf(method: string, body?: unknown, signal?: AbortSignal, type = "application/json"): RequestInit {
  return {
    method,
    ...(signal ? { signal } : {}),
    ...(body === undefined
      ? { headers: FROM_SCRIPT }
      : {
          body: type === "application/json" ? JSON.stringify(body) : String(body),
          headers: { ...FROM_SCRIPT, "Content-Type": type },
        }),
  };
}

/** Posts JSON, and returns values of users with all of their digits. Throws as `call`. */
export async function postExactly<T>(
  path: string,
  body: unknown,
  signal: AbortSignal,
): Promise<{ body: T; headers: Headers }> {
  const response = await ask(path, initOf("POST", body, signal));
  try {
    return { body: parseExactly(await response.text()) as T, headers: response.headers };
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError(response.status, "the answer ended before it was complete: try again");
  }
}

/** As `call`, for a check of what somebody is still writing.
 *
 * To an invalid input, the server answers 200 with the error, because a browser lists each answer 400
 * as an error of the page. Throws as `call`.
 */
export async function check<T>(
  method: "GET" | "POST" | "PUT",
  path: string,
  params: Params,
  signal: AbortSignal,
  body?: unknown,
  type?: string,
): Promise<T> {
  return checked(await call<T>(method, withParams(path, { ...params, reportInvalid: true }), body, signal, type));
}

/** As `check`, with the digits of `postExactly`. */
export async function checkExactly<T>(path: string, signal: AbortSignal, body: unknown): Promise<T> {
  return checked((await postExactly<T>(withParams(path, { reportInvalid: true }), body, signal)).body);
}

function checked<T>(found: T): T {
  if (found !== null && typeof found === "object" && "errorCode" in found)
    throw new ApiError(400, errorText(400, found), found);
  return found;
}

/** Posts a text or bytes as they are, and returns the headers of the answer. Throws as `call`. */
export async function postForHeaders(path: string, text: string | Blob): Promise<Headers> {
  return (await ask(path, { method: "POST", body: text, headers: FROM_SCRIPT })).headers;
}

/** Posts a text as it is, and returns as `call`. */
export async function post<T>(path: string, text = "", signal?: AbortSignal): Promise<T> {
  const init = { method: "POST", body: text, headers: FROM_SCRIPT, ...(signal ? { signal } : {}) };
  return (await bodyOf(await ask(path, init))) as T;
}

/** Returns the bytes of an answer, to a POST of JSON if there is a body. Throws as `call`. */
export async function bytes(path: string, body?: unknown): Promise<Blob> {
  return (await ask(path, initOf(body === undefined ? "GET" : "POST", body))).blob();
}

/** Returns the bytes of an answer in memory. Throws as `call`. */
export async function getBytes(path: string, signal?: AbortSignal): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await (await ask(path, initOf("GET", undefined, signal))).arrayBuffer());
}

/** An id that nothing else has. Browsers have random UUIDs only on pages of this host or under TLS. */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `console-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/** Saves data as a file of the browser. */
export function save(data: Blob, name: string): void {
  const found = document.createElement("a");
  found.href = URL.createObjectURL(data);
  found.download = name;
  found.click();
  window.setTimeout(() => URL.revokeObjectURL(found.href), 60_000);
}

export const get = <T>(path: string, signal?: AbortSignal): Promise<T> =>
  call<T>("GET", path, undefined, signal);

export const rest = (ms: number): Promise<void> => new Promise((resolve) => window.setTimeout(resolve, ms));

/** Whether a request failed because a process restarts: its answer may be lost, or come again. */
export const isAway = (error: unknown): boolean =>
  error instanceof ApiError && (error.status === 0 || error.status >= 502);

/** Returns the error of a failed step, with the result of the steps before and advice. */
export function stopped(error: ApiError, soFar: string, verb: string): ApiError {
  const advice = isAway(error) ? `. ${verb} again: nothing is done twice` : "";
  return new ApiError(error.status, `${soFar && `${soFar}. Then: `}${error.message}${advice}`);
}

const AWAY_MAX_MS = 120_000;
const AWAY_MS = 1_000;
const ANSWER_MS = 60_000;

/** As `get`, for what goes on meanwhile: repeats the request for up to two minutes while the server restarts. */
export async function follow<T>(path: string, signal?: AbortSignal): Promise<T> {
  for (const end = Date.now() + AWAY_MAX_MS; ; ) {
    try {
      return await get<T>(path, signal ?? AbortSignal.timeout(ANSWER_MS));
    } catch (error) {
      if (!isAway(error) || Date.now() > end) throw error;
      await rest(AWAY_MS);
    }
  }
}
