// Counted values of columns: kept in this browser, with the state of the datasource they belong to.

/** What a count found. */
export interface Counted {
  newest: string | null;
  rows: number;
  /** Estimated number of distinct values by column. */
  distinct: Record<string, number>;
  /** Epoch ms. */
  at: number;
  /** The segments that were counted, see `stateOf`; empty: not known. */
  state: string;
}

const KEY = "penstock-counted-values";
const KEPT_MAX = 50;

function all(): Record<string, Counted> {
  try {
    const found: unknown = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return typeof found === "object" && found !== null ? (found as Record<string, Counted>) : {};
  } catch {
    return {};
  }
}

/** Returns the last count of a datasource, if it has the form of this release. */
export function keptOf(datasource: string): Counted | undefined {
  const found = Object.entries(all()).find(([name]) => name === datasource)?.[1];
  return typeof found?.at === "number" && typeof found.distinct === "object" ? found : undefined;
}

/** Keeps a count, and forgets the oldest ones. */
export function keep(datasource: string, counted: Counted): void {
  const others = Object.entries(all()).filter(([name]) => name !== datasource);
  const kept = [...others, [datasource, counted] as const].sort(([, a], [, b]) => b.at - a.at);
  try {
    localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(kept.slice(0, KEPT_MAX))));
  } catch {
    // a browser that keeps nothing, or is full
  }
}
