// Requests of which only the newest counts. Answers may arrive in another order than they were asked
// for: everything that sets state after an answer goes through here, so that an earlier request
// never replaces the answer to a later one.
import { useEffect, useMemo, useState } from "preact/hooks";

type Request<T> = (signal: AbortSignal) => Promise<T>;

/** The requests for one thing that a page shows, each of which ends the one before. */
export class Newest {
  #stop = new AbortController();
  #isClosed = false;

  /** Ends the former request, and returns the signal of a new one: once it is aborted, nothing may be set. */
  begin(): AbortSignal {
    this.end();
    if (!this.#isClosed) this.#stop = new AbortController();
    return this.#stop.signal;
  }

  /** Ends the request, if there is one: its answer is dropped. */
  end(): void {
    this.#stop.abort();
  }

  /** Ends the request and sends no other: nobody sees what was asked for. */
  close(): void {
    this.#isClosed = true;
    this.end();
  }

  /** Sends a request, and reports its answer or error, unless another one has begun meanwhile. */
  async ask<T>(request: Request<T>, done: (value: T) => void, failed: (error: Error) => void): Promise<void> {
    const signal = this.begin();
    if (signal.aborted) return;
    let value: T;
    try {
      value = await request(signal);
    } catch (error) {
      if (!signal.aborted) failed(error as Error);
      return;
    }
    if (!signal.aborted) done(value);
  }
}

/** Requests that end with the component, which sends none afterwards, whatever an action of it still does. */
export function useNewest(): Newest {
  const newest = useMemo(() => new Newest(), []);
  useEffect(() => () => newest.close(), []);
  return newest;
}

export interface Asked<T> {
  value?: T;
  error?: Error;
}

/** The answer to the request for a key, which is sent once for each key; no key: nothing.
 *
 * `restMs`: how long the key must stay the same before the request is sent, for what is typed.
 */
export function useAsked<T>(key: string | undefined, request: Request<T>, restMs = 0): Asked<T> {
  const newest = useNewest();
  const [found, setFound] = useState<Asked<T> & { key?: string }>({});
  useEffect(() => {
    setFound({});
    if (key === undefined) return undefined;
    const send = (): void => {
      void newest.ask(
        request,
        (value) => setFound({ key, value }),
        (error) => setFound({ key, error }),
      );
    };
    const timer = restMs > 0 ? window.setTimeout(send, restMs) : undefined;
    if (timer === undefined) send();
    return () => {
      window.clearTimeout(timer);
      newest.end();
    };
  }, [key]);
  // Effects run after the page was drawn: until then, this is the answer for the former key.
  return found.key === key ? found : {};
}
