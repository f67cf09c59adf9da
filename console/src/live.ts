// Live answers: the paths that the page shows, over one stream of server-sent events for each tab.
import { effect, signal, type Signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";

import { address, ApiError, errorText, get } from "./api";
import { askWho } from "./session";

/** The newest answer of a path. `at` is the time of this browser when it arrived, in ms. */
export interface Live<T> {
  value?: T;
  error?: ApiError;
  at: number;
}

/** `idle`: the page watches nothing. */
export type Connection = "idle" | "connecting" | "open" | "lost";

export const connection = signal<Connection>("idle");

interface Watched {
  /** The intervals that its users want, in seconds; the shortest one counts. */
  wanted: number[];
  answer: Signal<Live<unknown>>;
}

const RETRY_MS = 2_000;
const OFTEN_S = 2;
const JOIN_MS = 30; // paths that a page begins to watch together share one new stream

const watched = new Map<string, Watched>();
let source: EventSource | null = null;
let asked = "";
let isKnown = false;
let timer: number | undefined;

function reconnect(afterMs: number): void {
  window.clearTimeout(timer);
  timer = window.setTimeout(() => void open(), afterMs);
}

async function open(): Promise<void> {
  if (document.hidden) return;
  forgetUnwanted();
  // A page does not get the status with which a stream is refused, so the login is checked before.
  if (!isKnown && watched.size > 0) {
    if (connection.value === "idle") connection.value = "connecting";
    isKnown = await askWho();
    if (!isKnown) {
      connection.value = "lost";
      reconnect(RETRY_MS);
      return;
    }
    if (document.hidden) return;
    forgetUnwanted();
  }
  const wanted = [...watched.keys()].sort();
  const query = wanted.map(asParams).join("&");
  if (source !== null && source.readyState !== EventSource.CLOSED && query === asked) return;
  source?.close();
  source = null;
  asked = query;
  connection.value = wanted.length === 0 ? "idle" : "connecting";
  if (wanted.length === 0) return;
  const opened = new EventSource(address(`penstock/v1/live?${query}`));
  source = opened;
  opened.onopen = () => {
    if (source === opened) connection.value = "open";
  };
  opened.onmessage = (event) => {
    if (source === opened) received(wanted, event.data as string);
  };
  opened.onerror = () => {
    if (source !== opened) return;
    connection.value = "lost";
    // A browser gives up after an answer that is not a stream, as a restarting server gives.
    opened.close();
    isKnown = false;
    reconnect(RETRY_MS);
  };
}

/** Forgets the paths that nobody wants. `leave` keeps them for the next page, because the stream sends an answer once. */
function forgetUnwanted(): void {
  for (const [path, { wanted }] of watched) if (wanted.length === 0) watched.delete(path);
}

function asParams(path: string): string {
  const every = Math.min(...(watched.get(path)?.wanted ?? [OFTEN_S]));
  return `watch=${encodeURIComponent(path)}&every=${every}`;
}

function received(wanted: string[], data: string): void {
  const { watch, status, body } = JSON.parse(data) as {
    watch: number;
    status: number;
    body: unknown;
  };
  const entry = watched.get(wanted[watch] ?? "");
  if (entry === undefined) return;
  const at = Date.now();
  if (status >= 200 && status < 300) {
    entry.answer.value = { value: body, at };
    return;
  }
  const error = new ApiError(status, errorText(status, body));
  entry.answer.value = { ...entry.answer.value, error, at };
}

function join(path: string, every: number): Signal<Live<unknown>> {
  let entry = watched.get(path);
  if (entry === undefined) {
    entry = { wanted: [], answer: signal<Live<unknown>>({ at: 0 }) };
    watched.set(path, entry);
  }
  entry.wanted.push(every);
  reconnect(JOIN_MS);
  return entry.answer;
}

function leave(path: string, every: number): void {
  const entry = watched.get(path);
  if (entry === undefined) return;
  entry.wanted.splice(entry.wanted.indexOf(every), 1);
  reconnect(JOIN_MS);
}

/** Returns the newest answer of a path while the component is shown; no path: nothing.
 *
 * `every` is the number of seconds between two answers: pages that are open all day ask seldom.
 */
export function useLive<T>(path: string | null, every = OFTEN_S): Live<T> {
  const answer = useMemo(() => signal<Live<unknown>>({ at: 0 }), [path]);
  useEffect(() => {
    if (path === null) return undefined;
    const shared = join(path, every);
    const stop = effect(() => {
      answer.value = shared.value;
    });
    return () => {
      stop();
      leave(path, every);
    };
  }, [path, every]);
  return answer.value as Live<T>;
}

/** Requests the first answer of a path by itself, while the stream is opened anew. */
async function askFirst(path: string): Promise<void> {
  const entry = watched.get(path);
  if (entry === undefined || entry.answer.value.at > 0) return;
  try {
    const value = await get<unknown>(path);
    if (entry.answer.value.at === 0) entry.answer.value = { value, at: Date.now() };
  } catch {
    // The stream reports it.
  }
}

/** As `useLive`, but keeps the answer of the former path until that of a new one has come.
 *
 * The first answer of a new path comes at once, because somebody has asked for it by a click.
 */
export function useLiveKept<T>(path: string, every = OFTEN_S): Live<T> {
  const live = useLive<T>(path, every);
  const kept = useRef(live);
  const former = useRef(path);
  useEffect(() => {
    if (former.current === path) return;
    former.current = path;
    void askFirst(path);
  }, [path]);
  if (live.value !== undefined || live.error !== undefined) kept.current = live;
  return kept.current;
}

// A tab that nobody sees costs the server nothing.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = null;
    window.clearTimeout(timer);
  } else {
    reconnect(0);
  }
});
