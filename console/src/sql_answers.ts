// Statements as requests, and their answers.
import { newId, postExactly, type Params } from "./api";
import type { Result } from "./sql_charts";

export const SQL = "/druid/v2/sql";
export const ROWS_MAX = 100_000;

/** Who answers: `""` is the choice of the server. */
export const ENGINES = ["", "auto", "fast", "spark"] as const;
export type Engine = (typeof ENGINES)[number];

/** Returns the engine with a name; the choice of the server, if there is none. */
export function engineNamed(name: string | null): Engine {
  return ENGINES.find((one) => one === name) ?? "";
}

export function requestOf(statement: string, id: string, engine: Engine, more: object): object {
  const context: Params = { sqlQueryId: id, sqlOuterLimit: ROWS_MAX, ...(engine === "" ? {} : { engine }) };
  return { query: statement, context, ...more };
}

/** Runs a statement. Throws ApiError. */
export async function answered(
  statement: string,
  signal: AbortSignal,
  { id = newId(), engine = "" }: { id?: string; engine?: Engine } = {},
): Promise<Result> {
  const began = performance.now();
  const wanted = { resultFormat: "array", header: true, sqlTypesHeader: true };
  const request = requestOf(statement, id, engine, wanted);
  const { body, headers } = await postExactly<unknown[][] | null>(SQL, request, signal);
  const [columns = [], types = [], ...rows] = body ?? [];
  return {
    columns: columns.map(String),
    types: types.map(String),
    rows,
    tookMs: performance.now() - began,
    engine: headers.get("X-Penstock-Engine") ?? "",
  };
}
