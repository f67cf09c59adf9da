// Rows of a query as a table, of which only those in sight are in the page.
import type { JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { exactText } from "./exact_json";
import type { Result } from "./sql_charts";

const ROW_PX = 30;
const AROUND = 30;

/** A table of which only the rows in sight are in the page. */
export function Rows({
  result,
  traceOf,
}: {
  result: Result;
  /** The place of the trace of a row, if the rows are those of one datasource. */
  traceOf?: ((row: unknown[]) => string | undefined) | undefined;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  // Before anybody can scroll the new rows.
  useLayoutEffect(() => {
    setTop(0);
    if (box.current) box.current.scrollTop = 0;
  }, [result]);
  const first = Math.max(0, Math.floor(top / ROW_PX) - AROUND);
  const last = Math.min(result.rows.length, first + 2 * AROUND + Math.ceil(900 / ROW_PX));
  return (
    <div
      class="rows"
      ref={box}
      tabIndex={0}
      role="region"
      aria-label="rows"
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <table aria-rowcount={result.rows.length}>
        <thead>
          <tr>
            {result.columns.map((name, index) => (
              <th key={index} scope="col" title={result.types[index]} class={isNumber(result.rows[0]?.[index]) ? "right" : ""}>
                {name}
              </th>
            ))}
            {traceOf && <th scope="col">origin</th>}
          </tr>
        </thead>
        <tbody>
          {first > 0 && (
            <tr aria-hidden="true">
              <td style={{ height: `${first * ROW_PX}px` }} />
            </tr>
          )}
          {result.rows.slice(first, last).map((row, index) => (
            <tr key={first + index} style={{ height: `${ROW_PX}px` }}>
              {row.map((value, column) => (
                <td key={column} class={isNumber(value) ? "right" : ""}>
                  {cell(value)}
                </td>
              ))}
              {traceOf && <td>{traceLink(traceOf(row))}</td>}
            </tr>
          ))}
          {last < result.rows.length && (
            <tr aria-hidden="true">
              <td style={{ height: `${(result.rows.length - last) * ROW_PX}px` }} />
            </tr>
          )}
        </tbody>
      </table>
    </div>
  );
}

function isNumber(value: unknown): boolean {
  return typeof value === "number" || typeof value === "bigint";
}

function traceLink(href: string | undefined): JSX.Element | string {
  return href === undefined ? "" : <a href={href}>trace</a>;
}

function cell(value: unknown): JSX.Element | string {
  if (value === null || value === undefined) return <span class="quiet">null</span>;
  return typeof value === "object" ? exactText(value) : String(value);
}
