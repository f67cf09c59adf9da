// Rates: the difference of two answers of a counter, by the time of the server.
import { useEffect, useRef, useState } from "preact/hooks";

import { connection } from "./live";

/** Longer than between two requests of the server for an answer that takes long. */
const QUIET_MS = 30_000;
const TICK_MS = 5_000;

interface Seen {
  at: number;
  value: number;
  rate: number | undefined;
}

/** Returns a function that gives the rate per second of the counter with a key, from answer to answer.
 *
 * A counter that has become smaller began again with its process: it has no rate until the next answer.
 */
export function useRates(): (key: string, value: number, at: number) => number | undefined {
  const seen = useRef(new Map<string, Seen>());
  return (key, value, at) => {
    const last = seen.current.get(key);
    if (last === undefined || value < last.value) {
      seen.current.set(key, { at, value, rate: undefined });
      return undefined;
    }
    if (at <= last.at) return last.rate;
    const rate = ((value - last.value) * 1_000) / (at - last.at);
    seen.current.set(key, { at, value, rate });
    return rate;
  };
}

/** Returns the time up to which an answer counts, in ms of this browser.
 *
 * The stream does not send the same answer again. So counters that stand still are told from the
 * absence of answers, and their rates become zero.
 */
export function useCountedUntil(at: number): number {
  const newest = useRef(at);
  newest.current = at;
  const [now, setNow] = useState(at);
  useEffect(() => {
    const timer = window.setInterval(() => {
      if (Date.now() - newest.current > QUIET_MS) setNow(Date.now());
    }, TICK_MS);
    return () => window.clearInterval(timer);
  }, []);
  return connection.value === "open" ? Math.max(now, at) : at;
}
