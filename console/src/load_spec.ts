// The spec that loads an input: what a person chose, as the JSON of a task or a supervisor.

export type Json = string | number | boolean | null | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export interface TimeSpec {
  column: string;
  format: string;
  /** One time for all rows, which have none. */
  missingValue?: string;
}

export interface LoadColumn {
  name: string;
  type: string;
  isKept: boolean;
}

/** An input, and what the page says about it. */
export interface Source {
  /** What tasks read; for a topic the messages that were read, as text. */
  input: JsonObject;
  /** Reads a topic without an end, instead of files once. */
  topic?: string;
  /** A proposal for the name of the datasource. */
  name: string;
}

/** What a person has chosen about the rows. */
export interface Shape {
  format: JsonObject;
  time: TimeSpec | null;
  columns: LoadColumn[];
}

export interface Destination {
  datasource: string;
  isAppended: boolean;
  granularity: string;
}

/** A column that no row has, so that `missingValue` counts for every row. */
export const NO_COLUMN = "no time column";

/** The dimensions of a spec: the kept columns without that of the time. */
export function dimensionsOf(shape: Shape): { name: string; type: string }[] {
  return shape.columns
    .filter((one) => one.isKept && one.name !== shape.time?.column)
    .map(({ name, type }) => ({ name, type }));
}

export function timestampSpec(time: TimeSpec): JsonObject {
  const { column, format, missingValue } = time;
  return { column, format, ...(missingValue === undefined ? {} : { missingValue }) };
}

export function specOf(source: Source, shape: Shape, to: Destination): JsonObject {
  const dataSchema = {
    dataSource: to.datasource,
    timestampSpec: timestampSpec(shape.time ?? { column: "", format: "auto" }),
    dimensionsSpec: {
      dimensions: dimensionsOf(shape).map((one) => (one.type === "string" ? one.name : one)),
    },
    granularitySpec: { segmentGranularity: to.granularity, rollup: false },
  };
  if (source.topic !== undefined) {
    const format: JsonObject = shape.format["type"] === "json" ? {} : { inputFormat: shape.format };
    return {
      type: "penstock",
      spec: { dataSchema, ioConfig: { topic: source.topic, useEarliestOffset: true, ...format } },
    };
  }
  return {
    type: "index_parallel",
    spec: {
      dataSchema,
      ioConfig: {
        type: "index_parallel",
        inputSource: source.input,
        inputFormat: shape.format,
        appendToExisting: to.isAppended,
      },
      tuningConfig: { type: "index_parallel", maxSavedParseExceptions: 20 },
    },
  };
}

/** A name for a datasource, from that of a file, a URL or a topic. */
export function datasourceName(text: string): string {
  const file = (text.split(/[?#]/)[0] ?? "").replace(/\/+$/, "").split("/").pop() ?? "";
  const plain = file.replace(/(\.(csv|tsv|txt|json|jsonl|ndjson|parquet|orc|avro|log|gz|zst|bz2|lz4))+$/i, "");
  return plain.replace(/[^\p{L}\p{N}_]+/gu, "_").replace(/^_+|_+$/g, "").toLowerCase().slice(0, 60);
}

const UNITS: Record<string, "HOUR" | "DAY" | "MONTH" | "YEAR"> = {
  HOUR: "HOUR",
  DAY: "DAY",
  MONTH: "MONTH",
  YEAR: "YEAR",
};

/** The time chunks that contain a range of times, as an interval; null: all time. */
export function chunksOf(start: string, end: string, granularity: string): [string, string] | null {
  const unit = UNITS[granularity];
  if (unit === undefined) return null;
  const first = new Date(start);
  const last = new Date(end);
  const part = (date: Date, more: number): Date => {
    const at = (name: string, value: number): number => (unit === name ? value + more : value);
    const year = at("YEAR", date.getUTCFullYear());
    if (unit === "YEAR") return new Date(Date.UTC(year, 0));
    const month = at("MONTH", date.getUTCMonth());
    if (unit === "MONTH") return new Date(Date.UTC(year, month));
    const day = at("DAY", date.getUTCDate());
    if (unit === "DAY") return new Date(Date.UTC(year, month, day));
    return new Date(Date.UTC(year, month, day, at("HOUR", date.getUTCHours())));
  };
  return [part(first, 0).toISOString(), part(last, 1).toISOString()];
}

/** A statement that counts rows over time, for a range of this length. */
export function chartStatement(table: string, spanMs: number): string {
  const hour = 3_600_000;
  const unit =
    spanMs <= 6 * hour ? "MINUTE" : spanMs <= 8 * 24 * hour ? "HOUR" : spanMs <= 700 * 24 * hour ? "DAY" : "MONTH";
  return `SELECT date_trunc('${unit}', __time) AS time, count(*) AS rows\nFROM ${table}\nGROUP BY 1 ORDER BY 1`;
}
