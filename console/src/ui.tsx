// Parts of pages: cards, tables, states, errors.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { ApiError } from "./api";
import type { Live } from "./live";

/** How good a state is; the colour and the sign, so that no state is told by a colour alone. */
export type Tone = "good" | "warn" | "bad" | "idle" | "busy";

const REST_MS = 200;
const DATE = /^\(?\d{4}-\d\d-\d\d/;

const SIGNS: Record<Tone, string> = { good: "●", warn: "▲", bad: "✖", idle: "○", busy: "◐" };

export function State({ tone, children }: { tone: Tone; children: ComponentChildren }): JSX.Element {
  return (
    <span class={`state ${tone}`}>
      <span aria-hidden="true">{SIGNS[tone]}</span> {children}
    </span>
  );
}

export function ErrorBox({ error }: { error: ApiError | Error }): JSX.Element {
  const isForbidden = error instanceof ApiError && error.status === 403;
  return (
    <div class={isForbidden ? "error calm" : "error"} role="alert">
      {error.message}
      {error instanceof ApiError && error.status === 401 && <LogInHint />}
    </div>
  );
}

/** How to log in, where the server has refused an answer for want of a credential. */
export function LogInHint(): JSX.Element {
  return (
    <p>
      This browser is not logged in: run <code>penstock login --link</code> on the host of the server, and
      open the link. <a href="login">More about logins</a>
    </p>
  );
}

/** Whether the principal may not see an answer: no failure, so nothing red. */
export function isRefused(live: Live<unknown>): boolean {
  return live.error instanceof ApiError && live.error.status === 403;
}

/** The content of a live answer; before the first one, that it is awaited. */
export function Answer<T>({
  live,
  children,
}: {
  live: Live<T>;
  children: (value: T) => ComponentChildren;
}): JSX.Element {
  return (
    <>
      {live.error !== undefined &&
        (isRefused(live) ? (
          <p class="quiet">You may not see this: {live.error.message}</p>
        ) : (
          <ErrorBox error={live.error} />
        ))}
      {live.value !== undefined
        ? children(live.value)
        : live.error === undefined && <p class="quiet">waiting for the server …</p>}
    </>
  );
}

export function Card({
  title,
  more,
  wide,
  children,
}: {
  title: string;
  more?: ComponentChildren;
  wide?: boolean;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <section class={wide ? "card wide" : "card"}>
      <header>
        <h2>{title}</h2>
        {more}
      </header>
      {children}
    </section>
  );
}

export function Figure({ label, value }: { label: string; value: ComponentChildren }): JSX.Element {
  return (
    <div class="figure">
      <dt>{label}</dt>
      <dd>{value}</dd>
    </div>
  );
}

export interface Column<Row> {
  title: string;
  cell: (row: Row) => ComponentChildren;
  /** Numbers stand at the right. */
  right?: boolean;
  /** Left out on narrow screens. */
  extra?: boolean;
}

export function Table<Row>({
  caption,
  rows,
  columns,
  keyOf,
  none,
}: {
  caption: string;
  rows: Row[];
  columns: Column<Row>[];
  keyOf: (row: Row) => string;
  none: ComponentChildren;
}): JSX.Element {
  if (rows.length === 0) return <p class="quiet">{none}</p>;
  const kind = (column: Column<Row>): string =>
    [column.right ? "right" : "", column.extra ? "extra" : ""].join(" ").trim();
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.title} scope="col" class={kind(column)}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)}>
              {columns.map((column) => (
                <td key={column.title} class={kind(column)}>
                  {whole(column.cell(row))}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The width of an element, which is set as its `ref`, in pixels. */
export function useWidth(): [(host: HTMLDivElement | null) => void, number] {
  const [host, setHost] = useState<HTMLDivElement | null>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (host === null) return undefined;
    const resized = new ResizeObserver(() => setWidth(host.clientWidth));
    resized.observe(host);
    return () => resized.disconnect();
  }, [host]);
  return [setHost, width];
}

/** Text with dates that no line ends in: a browser would divide them at their hyphens. */
function whole(content: ComponentChildren): ComponentChildren {
  if (typeof content !== "string") return content;
  const words = content.split(" ");
  if (!words.some((word) => DATE.test(word))) return content;
  return words
    .flatMap((word, index) => [index > 0 ? " " : "", DATE.test(word) ? <span class="nowrap">{word}</span> : word]);
}

/** A text field that reports what was typed after a short rest. */
export function Search({
  label,
  value,
  onChange,
}: {
  label: string;
  value: string;
  onChange: (text: string) => void;
}): JSX.Element {
  const field = useRef<HTMLInputElement>(null);
  const timer = useRef<number | undefined>(undefined);
  // It belongs to this page: what is reported later would change the address of another one.
  useEffect(() => () => window.clearTimeout(timer.current), []);
  // A link to other results changes the text; what is being typed stays.
  useEffect(() => {
    if (field.current !== null && timer.current === undefined) field.current.value = value;
  }, [value]);
  return (
    <label class="search">
      <span class="hidden">{label}</span>
      <input
        ref={field}
        type="search"
        placeholder={label}
        defaultValue={value}
        onInput={(event) => {
          const text = event.currentTarget.value;
          window.clearTimeout(timer.current);
          timer.current = window.setTimeout(() => {
            timer.current = undefined;
            onChange(text);
          }, REST_MS);
        }}
      />
    </label>
  );
}

/** Links between the pages of a long list. */
export function Pager({
  skip,
  limit,
  found,
  onSkip,
}: {
  skip: number;
  limit: number;
  found: number;
  onSkip: (skip: number) => void;
}): JSX.Element | null {
  if (found <= limit && skip === 0) return null;
  return (
    <nav class="pager" aria-label="pages of the list">
      <button type="button" disabled={skip === 0} onClick={() => onSkip(Math.max(0, skip - limit))}>
        previous
      </button>
      <span>
        {skip + 1} to {Math.min(found, skip + limit)} of {found}
      </span>
      <button type="button" disabled={skip + limit >= found} onClick={() => onSkip(skip + limit)}>
        next
      </button>
    </nav>
  );
}
