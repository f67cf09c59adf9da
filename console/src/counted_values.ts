// Counted values of columns: kept in this browser, with the state of the datasource they belong to.
import { keep, kept } from "./browser_memory";

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

const COUNTED = "counted-values";
const KEPT_MAX = 50;

function all(): Record<string, Counted> {
  const found = kept(COUNTED);
  return typeof found === "object" && found !== null ? (found as Record<string, Counted>) : {};
}

/** Returns the last count of a datasource, if it has the form of this release. */
export function keptOf(datasource: string): Counted | undefined {
  const found = Object.entries(all()).find(([name]) => name === datasource)?.[1];
  return typeof found?.at === "number" && typeof found.distinct === "object" ? found : undefined;
}

/** Keeps a count, and forgets the oldest ones. */
export function keepCounted(datasource: string, counted: Counted): void {
  const others = Object.entries(all()).filter(([name]) => name !== datasource);
  const newest = [...others, [datasource, counted] as const].sort(([, a], [, b]) => b.at - a.at);
  keep(COUNTED, Object.fromEntries(newest.slice(0, KEPT_MAX)));
}
