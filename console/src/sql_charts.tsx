// Rows of a query as a picture: lines or bars, a heat map, or numbers.
import type { JSX } from "preact";

import { Chart, type Series } from "./chart";
import { count } from "./format";
import { Figure } from "./ui";

export interface Result {
  columns: string[];
  types: string[];
  rows: unknown[][];
  tookMs: number;
  /** Who answered: `fast` or `spark`. */
  engine: string;
}

const POINTS_MAX = 20_000;
const NAMED_MAX = 40;
const ACROSS_MAX = 120;
const DOWN_MAX = 60;
const NUMBERS_MAX = 24;
const NUMBER = /^(TINYINT|SMALLINT|INTEGER|BIGINT|FLOAT|DOUBLE|DECIMAL)/;
const TIME = /^(TIMESTAMP|DATE)/;

interface Drawn {
  x: number[];
  isTime: boolean;
  series: Series[];
  /** What the numbers of the axis stand for, where the first column is text. */
  names?: string;
}

/** Series for a chart: the first column as the axis, each column of numbers after it as a line. */
export function seriesOf(result: Result): Drawn | null {
  const numbers = result.types
    .map((type, index) => ({ type, index }))
    .slice(1)
    .filter(({ type }) => NUMBER.test(type));
  if (numbers.length === 0 || result.rows.length < 2) return null;
  const isTime = TIME.test(result.types[0] ?? "");
  const isNumber = NUMBER.test(result.types[0] ?? "");
  let rows = result.rows.slice(0, POINTS_MAX);
  const at = (row: unknown[], index: number): number =>
    isTime ? Date.parse(String(row[0])) : isNumber ? Number(row[0]) : index + 1;
  if (isTime || isNumber) rows = rows.filter((row) => row[0] !== null).sort((a, b) => at(a, 0) - at(b, 0));
  const series = numbers.map(({ index }) => ({
    label: result.columns[index] ?? "",
    values: rows.map((row) => (row[index] === null ? null : Number(row[index]))),
  }));
  const names = rows.slice(0, NAMED_MAX).map((row, index) => `${index + 1}: ${String(row[0])}`);
  return { x: rows.map(at), isTime, series, ...(isTime || isNumber ? {} : { names: names.join(", ") }) };
}

/** The rows as a chart; bars also where the first column is text. */
export function RowChart({ drawn, bars }: { drawn: Drawn; bars: boolean }): JSX.Element {
  const { names, ...rest } = drawn;
  return (
    <div class="card">
      <Chart label="rows as a chart" {...rest} bars={bars || names !== undefined} />
      {names && <p class="quiet">{names}</p>}
    </div>
  );
}

interface Heat {
  across: string[];
  down: string[];
  /** By place across and down. */
  cells: Map<string, number>;
  max: number;
  label: string;
  isCut: boolean;
}

/** Cells for a heat map: two columns of places, and the first column of numbers after them. */
export function heatOf(result: Result): Heat | null {
  const at = result.types.findIndex((type, index) => index > 1 && NUMBER.test(type));
  if (at < 0 || result.rows.length === 0) return null;
  const across = new Map<string, number>();
  const down = new Map<string, number>();
  const cells = new Map<string, number>();
  let isCut = false;
  const isTime = TIME.test(result.types[0] ?? "");
  const rows = isTime ? [...result.rows].sort((a, b) => (String(a[0]) < String(b[0]) ? -1 : 1)) : result.rows;
  for (const row of rows) {
    const [x, y] = [String(row[0]), String(row[1])];
    if (!across.has(x) && across.size < ACROSS_MAX) across.set(x, across.size);
    if (!down.has(y) && down.size < DOWN_MAX) down.set(y, down.size);
    if (!across.has(x) || !down.has(y)) {
      isCut = true;
      continue;
    }
    const key = `${across.get(x)} ${down.get(y)}`;
    cells.set(key, (cells.get(key) ?? 0) + Number(row[at] ?? 0));
  }
  const max = Math.max(...cells.values());
  return {
    across: [...across.keys()],
    down: [...down.keys()],
    cells,
    max,
    label: result.columns[at] ?? "",
    isCut,
  };
}

const CELL = 20;
const CHARACTER_PX = 7; // of a font of 12 px, a little more than usual
const NAME_CHARACTERS_MAX = 48;
const MIDDLE_PX = 14; // from the edge of a cell to the line on which its name stands

/** The name of a place as it is written: times without the parts that are zero. */
function placeName(text: string): string {
  const short = text.replace(/T00:00:00\.000Z$/, "").replace(/(T\d\d:\d\d)(:00)?\.000Z$/, "$1");
  return short.length > NAME_CHARACTERS_MAX ? `${short.slice(0, NAME_CHARACTERS_MAX - 1)}…` : short;
}

const widthOf = (names: string[]): number =>
  Math.max(...names.map((name) => placeName(name).length)) * CHARACTER_PX + CELL / 2;

/** Rows and columns with their whole names: those of columns run downwards. */
export function HeatMap({ heat }: { heat: Heat }): JSX.Element {
  const { across, down, cells, max, label } = heat;
  const left = widthOf(down);
  const top = widthOf(across);
  const width = left + across.length * CELL;
  const height = top + down.length * CELL;
  return (
    <div class="card">
      <div class="scroll" tabIndex={0} role="region" aria-label="rows as a heat map">
        <svg width={width} height={height} class="heat" role="img" aria-label={`${label} by place`}>
          {down.map((name, y) => (
            <text key={name} x={left - 6} y={top + y * CELL + MIDDLE_PX} text-anchor="end">
              {placeName(name)}
              <title>{name}</title>
            </text>
          ))}
          {across.map((name, x) => (
            <text key={name} transform={`translate(${left + x * CELL + MIDDLE_PX - 8} ${top - 6}) rotate(90)`} text-anchor="end">
              {placeName(name)}
              <title>{name}</title>
            </text>
          ))}
          {[...cells].map(([key, value]) => {
            const [x = 0, y = 0] = key.split(" ").map(Number);
            return (
              <rect
                key={key}
                x={left + x * CELL}
                y={top + y * CELL}
                width={CELL - 1}
                height={CELL - 1}
                fill-opacity={max > 0 ? Math.max(0.04, value / max) : 0.04}
              >
                <title>{`${across[x]}, ${down[y]}: ${count(value)}`}</title>
              </rect>
            );
          })}
        </svg>
      </div>
      <p class="quiet">
        {label}, up to {count(max)}
        {heat.isCut && `; only the first ${ACROSS_MAX} × ${DOWN_MAX} places`}
      </p>
    </div>
  );
}

interface Labelled {
  label: string;
  value: number | bigint;
}

/** The numbers of the first row, large; null: it has none. */
export function numbersOf(result: Result): Labelled[] | null {
  const row = result.rows[0];
  if (row === undefined) return null;
  const found = result.types
    .map((type, index) => ({ type, label: result.columns[index] ?? "", value: row[index] }))
    .filter(({ type, value }) => NUMBER.test(type) && value !== null)
    .slice(0, NUMBERS_MAX);
  const exact = (value: unknown): number | bigint => (typeof value === "bigint" ? value : Number(value));
  return found.length === 0 ? null : found.map(({ label, value }) => ({ label, value: exact(value) }));
}

export function Numbers({ found }: { found: Labelled[] }): JSX.Element {
  return (
    <dl class="card figures large">
      {found.map(({ label, value }, index) => (
        <Figure key={index} label={label} value={count(value)} />
      ))}
    </dl>
  );
}
