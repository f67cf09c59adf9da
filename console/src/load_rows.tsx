// Step 2 of loading: the rows as a task would read them, and what can be changed about them.
import type { JSX } from "preact";

import type { InputSample } from "./answers";
import { count, exactly, size } from "./format";
import { NO_COLUMN, type LoadColumn, type Shape, type Source, type TimeSpec } from "./load_spec";
import { State, Table, type Column } from "./ui";

const TYPES = ["string", "long", "double", "float", "json"];
const FORMATS: [string, string][] = [
  ["csv", "CSV"],
  ["tsv", "values separated by another character"],
  ["json", "JSON"],
  ["parquet", "Parquet"],
  ["orc", "ORC"],
  ["avro_ocf", "Avro"],
];
const TIME_FORMATS = ["iso", "auto", "posix", "millis", "micro", "nano", "dd.MM.yyyy HH:mm", "MM/dd/yyyy", "yyyyMMdd"];
const NAME_SHOWN = 60;
const COLUMNS_LISTED = 300;
const NUMBERS = ["long", "double", "float"];

interface Props {
  source: Source;
  sample: InputSample;
  shape: Shape;
  isBusy: boolean;
  onShape: (shape: Shape) => void;
  /** Another format: everything else is guessed anew. */
  onFormat: (format: Shape["format"]) => void;
}

export function ShapeRows({ source, sample, shape, isBusy, onShape, onFormat }: Props): JSX.Element {
  const { read, files } = sample;
  return (
    <>
      <p role="status">
        {isBusy && <State tone="busy">reading …</State>}{" "}
        {files.count > 1 ? `${count(files.count)}${files.allCounted ? "" : " or more"} files` : nameOf(source, files.first)},{" "}
        {size(files.bytes)}. {read.whole ? "All" : "The first"} {exactly(read.rows + read.bad, "row")} {read.rows + read.bad === 1 ? "was" : "were"} read
        {read.bad > 0 && `, of which ${count(read.bad)} cannot be parsed`}.
      </p>
      <FormatChoice format={shape.format} onFormat={onFormat} />
      <TimeChoice sample={sample} shape={shape} onShape={onShape} />
      {sample.notes.map((note) => (
        <p key={note}>
          <State tone="warn">note</State>: {note}
        </p>
      ))}
      {sample.errors.length > 0 && (
        <>
          <h3>Rows that cannot be parsed</h3>
          <Table
            caption="rows that cannot be parsed"
            rows={sample.errors}
            keyOf={(one) => one.place}
            none=""
            columns={[
              { title: "place", cell: (one) => one.place },
              { title: "reason", cell: (one) => one.reason },
              { title: "row", cell: (one) => <code>{one.row}</code>, extra: true },
            ]}
          />
        </>
      )}
      <h3>Rows</h3>
      <Table
        caption="rows as they will be loaded"
        rows={sample.rows.map((row, index) => ({ row, index }))}
        keyOf={({ index }) => String(index)}
        none="No row can be parsed: change the format, the time or the types."
        columns={columnsOf(sample)}
      />
      <Columns shape={shape} onShape={onShape} />
    </>
  );
}

/** The rows of a topic and pasted rows are sent as a text, which the server calls inline. */
function nameOf(source: Source, file: string): string {
  if (source.topic !== undefined) return `topic ${source.topic}`;
  return source.input["type"] === "inline" ? "pasted text" : file;
}

type Numbered = { row: Record<string, unknown>; index: number };

function columnsOf(sample: InputSample): Column<Numbered>[] {
  // In the order of the file: the properties of an object would put names such as "1" first.
  const first = sample.rows[0] ?? {};
  // The types decide: a long integer may come as a text, which keeps its digits.
  const numbers = new Set(sample.dimensions.filter((one) => NUMBERS.includes(one.type)).map((one) => one.name));
  const all = ["__time", ...sample.dimensions.map((one) => one.name)];
  const names = all.filter((name) => Object.hasOwn(first, name));
  return names.map((name, index) => ({
    title: name.length > NAME_SHOWN ? `${name.slice(0, NAME_SHOWN)}… (${index + 1})` : name,
    cell: ({ row }) => {
      const value = row[name];
      if (value === null || value === undefined) return <span class="quiet">null</span>;
      return name === "__time" ? <span class="nowrap">{String(value)}</span> : String(value);
    },
    right: numbers.has(name),
  }));
}

function FormatChoice({
  format,
  onFormat,
}: {
  format: Shape["format"];
  onFormat: (format: Shape["format"]) => void;
}): JSX.Element {
  const type = String(format["type"]);
  const isDelimited = type === "csv" || type === "tsv";
  const hasHeader = format["findColumnsFromHeader"] === true || format["skipHeaderRows"] === 1;
  const choose = (changes: { type?: string; delimiter?: string; header?: boolean }): void => {
    const next = changes.type ?? type;
    if (next !== "csv" && next !== "tsv") {
      onFormat({ type: next });
      return;
    }
    const header = changes.header ?? hasHeader;
    const delimiter = changes.delimiter ?? String(format["delimiter"] ?? "\t");
    const width = Array.isArray(format["columns"]) ? format["columns"].length : 50;
    const columns = Array.from({ length: width }, (_, index) => `column_${index + 1}`);
    onFormat({
      type: next,
      ...(next === "tsv" && delimiter !== "\t" ? { delimiter } : {}),
      ...(header ? { findColumnsFromHeader: true } : { columns }),
    });
  };
  return (
    <div class="bar">
      <label>
        format{" "}
        <select value={type} onChange={(event) => choose({ type: event.currentTarget.value })}>
          {FORMATS.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
      </label>
      {type === "tsv" && (
        <label>
          separator{" "}
          <select
            value={String(format["delimiter"] ?? "\t")}
            onChange={(event) => choose({ delimiter: event.currentTarget.value })}
          >
            <option value={"\t"}>tab</option>
            <option value=";">;</option>
            <option value="|">|</option>
            <option value=" ">space</option>
          </select>
        </label>
      )}
      {isDelimited && (
        <label>
          <input type="checkbox" checked={hasHeader} onChange={(event) => choose({ header: event.currentTarget.checked })} />{" "}
          the first line has the names
        </label>
      )}
    </div>
  );
}

function TimeChoice({ sample, shape, onShape }: Pick<Props, "sample" | "shape" | "onShape">): JSX.Element {
  const { time, columns } = shape;
  const guess = sample.timeCandidates.find((one) => one.column === time?.column);
  const isConstant = time?.missingValue !== undefined;
  const change = (next: TimeSpec | null): void => onShape({ ...shape, time: next });
  const choose = (name: string): void => {
    if (name === "") change(null);
    else if (name === NO_COLUMN)
      change({ column: NO_COLUMN, format: "auto", missingValue: `${new Date().toISOString().slice(0, 10)}T00:00:00Z` });
    else
      change({
        column: name,
        format: sample.timeCandidates.find((one) => one.column === name)?.format ?? "auto",
      });
  };
  return (
    <>
      <div class="bar">
        <label>
          time{" "}
          <select value={time?.column ?? ""} onChange={(event) => choose(event.currentTarget.value)}>
            <option value="">choose …</option>
            {columns.slice(0, COLUMNS_LISTED).map((one) => (
              <option key={one.name} value={one.name}>
                {one.name.slice(0, NAME_SHOWN)}
              </option>
            ))}
            <option value={NO_COLUMN}>one time for all rows</option>
          </select>
        </label>
        {time !== null && !isConstant && (
          <label>
            format of the time{" "}
            <input
              list="time-formats"
              value={time.format}
              onChange={(event) => change({ ...time, format: event.currentTarget.value.trim() || "auto" })}
            />
            <datalist id="time-formats">
              {TIME_FORMATS.map((one) => (
                <option key={one} value={one} />
              ))}
            </datalist>
          </label>
        )}
        {time !== null && isConstant && (
          <label>
            time of all rows{" "}
            <input
              value={time.missingValue ?? ""}
              onChange={(event) => change({ ...time, missingValue: event.currentTarget.value.trim() })}
            />
          </label>
        )}
      </div>
      {time === null && (
        <p>
          <State tone="warn">no time</State>: every row needs one, and no column looks like it. Choose a column and its
          format, or one time for all rows.
        </p>
      )}
      {guess && guess.also !== "" && guess.format === time?.format && (
        <p>
          <State tone="warn">two readings</State>: these times are also valid in the format {guess.also}.
        </p>
      )}
    </>
  );
}

function Columns({ shape, onShape }: Pick<Props, "shape" | "onShape">): JSX.Element {
  const others = shape.columns.filter((one) => one.name !== shape.time?.column);
  const change = (name: string, more: Partial<LoadColumn>): void =>
    onShape({ ...shape, columns: shape.columns.map((one) => (one.name === name ? { ...one, ...more } : one)) });
  return (
    <details>
      <summary>Columns and their types ({others.length})</summary>
      <Table
        caption="columns"
        rows={others.slice(0, COLUMNS_LISTED)}
        keyOf={(one) => one.name}
        none="There is no column besides the time."
        columns={[
          {
            title: "column",
            cell: (one) => (
              <label>
                <input
                  type="checkbox"
                  checked={one.isKept}
                  onChange={(event) => change(one.name, { isKept: event.currentTarget.checked })}
                />{" "}
                {one.name}
              </label>
            ),
          },
          {
            title: "type",
            cell: (one) => (
              <select
                aria-label={`type of ${one.name}`}
                value={one.type}
                onChange={(event) => change(one.name, { type: event.currentTarget.value })}
              >
                {TYPES.map((type) => (
                  <option key={type} value={type}>
                    {type}
                  </option>
                ))}
              </select>
            ),
          },
        ]}
      />
    </details>
  );
}
