// Rates: the difference of two answers of a counter, by the time of the server.
import { useRef } from "preact/hooks";

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
