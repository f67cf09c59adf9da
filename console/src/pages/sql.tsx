// SQL: tabs with a statement each, its rows as a table or a picture, and its plan.
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import type { ColumnRow } from "../answers";
import { ApiError, bytes, call, newId, save } from "../api";
import { Action } from "../actions";
import { exactText } from "../exact_json";
import { ago, count, duration, exactly } from "../format";
import { place, setParams } from "../router";
import { answered, engineNamed, ENGINES, requestOf, SQL, type Engine } from "../sql_answers";
import { heatOf, HeatMap, Numbers, numbersOf, RowChart, seriesOf, type Result } from "../sql_charts";
import type { Editor, Names } from "../sql_editor";
import {
  closed,
  edited,
  firstTabs,
  forgetHistory,
  history,
  keepTabs,
  opened,
  remember,
  TABS_MAX,
  withStatement,
  type Tabs,
} from "../sql_history";
import { Plan, planOf } from "../sql_plan";
import { Rows } from "../sql_rows";
import { Card, ErrorBox } from "../ui";
import { quoted } from "./datasources";
import { RunningQueries } from "./running_queries";
import { rowTraces } from "./trace";

/** Rows of all tabs that stay in memory. */
const KEPT_ROWS_MAX = 300_000;
const HISTORY_SHOWN = 30;
const DESCRIBED_MAX = 30;
const SAVE_MS = 500;
const LINKED_CHARACTERS_MAX = 100_000;
/** On a line of its own, so that columns in errors are those of the statement. */
const EXPLAIN = { plan: "EXPLAIN FORMATTED\n", times: "EXPLAIN ANALYZE\n" };

const ENGINE_TEXTS: Record<Engine, string> = {
  "": "the server chooses",
  auto: "the fast engine, or Spark",
  fast: "the fast engine only",
  spark: "Spark",
};
const ANSWERED_BY: Record<string, string> = { fast: "by the fast engine", spark: "by Spark" };

const PLACE = /line (\d+), column (\d+)/;

async function namesForCompletion(): Promise<Names> {
  const ask = <Row,>(query: string): Promise<Row[]> => call<Row[]>("POST", SQL, { query });
  const [tables, functions] = await Promise.all([
    ask<{ tableName: string }>("SHOW TABLES"),
    ask<{ function: string }>("SHOW FUNCTIONS"),
  ]);
  const columns = await Promise.all(
    tables.slice(0, DESCRIBED_MAX).map(({ tableName }) =>
      ask<ColumnRow>(`DESCRIBE ${quoted(tableName)}`)
        .then((rows) => rows.map((row) => row.col_name))
        .catch(() => []),
    ),
  );
  return {
    tables: Object.fromEntries(tables.map(({ tableName }, index) => [tableName, columns[index] ?? []])),
    functions: functions.map((row) => row.function),
  };
}

const CANCELLED = new Error("the query was cancelled");

/** A query that runs. */
interface Running {
  id: string;
  stop: AbortController;
  /** Once it is cancelled, what the server said to that, as the error of the query. */
  end: Promise<Error>;
}

/** What a tab shows below its statement. */
interface Shown {
  result?: Result;
  error?: Error;
  /** The statement of the result. */
  ran: string;
}

export function Sql(): JSX.Element {
  const [tabs, setTabs] = useState<Tabs>(() => firstTabs(place.value.params.get("query")));
  const [shown, setShown] = useState<Map<string, Shown>>(new Map());
  const [running, setRunning] = useState<Running | null>(null);
  const [failure, setFailure] = useState<Error>();
  const [engine, setEngine] = useState<Engine>(() => engineNamed(place.value.params.get("engine")));
  const host = useRef<HTMLDivElement>(null);
  const editor = useRef<Editor | null>(null);
  const text = tabs.tabs.find((one) => one.id === tabs.active)?.text ?? "";
  const now = useRef({ tabs, run });
  now.current = { tabs, run };

  useEffect(() => {
    let isShown = true;
    async function load(): Promise<void> {
      const [{ makeEditor }, names] = await Promise.all([
        import("../editors"),
        namesForCompletion().catch(() => ({ tables: {}, functions: [] })),
      ]);
      if (!isShown || host.current === null) return;
      const { tabs: found } = now.current.tabs;
      editor.current = makeEditor(
        host.current,
        found.find((one) => one.id === now.current.tabs.active)?.text ?? "",
        names,
        (next) => setTabs((old) => edited(old, old.active, next)),
        () => void now.current.run(),
      );
    }
    load().catch((error: Error) => {
      if (isShown) setFailure(new Error(`the editor cannot be loaded: ${error.message}. Load the page again`));
    });
    return () => {
      isShown = false;
      editor.current?.destroy();
      editor.current = null;
    };
  }, []);

  // A link to a statement may be opened while this page is shown.
  const linked = place.value.params.get("query") ?? "";
  const known = useRef(linked);
  useEffect(() => {
    if (linked === known.current) return;
    known.current = linked;
    if (linked === "") return;
    show(withStatement(now.current.tabs, linked));
    setEngine(engineNamed(place.value.params.get("engine")));
  }, [linked]);

  useEffect(() => {
    const timer = window.setTimeout(() => keepTabs(tabs), SAVE_MS);
    return () => window.clearTimeout(timer);
  }, [tabs]);

  // A statement is kept also if the page is left before that.
  useEffect(() => {
    const keep = (): void => keepTabs(now.current.tabs);
    window.addEventListener("pagehide", keep);
    return () => {
      window.removeEventListener("pagehide", keep);
      keep();
    };
  }, []);

  function show(next: Tabs): void {
    setTabs(next);
    const found = next.tabs.find((one) => one.id === next.active)?.text ?? "";
    if (editor.current?.text() !== found) editor.current?.setText(found);
    editor.current?.setError(null);
  }

  function write(next: string): void {
    editor.current?.setText(next);
    setTabs((old) => edited(old, old.active, next));
  }

  async function run(before = ""): Promise<void> {
    if (running !== null) return; // Control-Enter: the buttons are disabled
    const statement = editor.current?.text() ?? text;
    const tab = tabs.active;
    const id = newId();
    const stop = new AbortController();
    const own: Running = { id, stop, end: Promise.resolve(CANCELLED) };
    setRunning(own);
    editor.current?.setError(null);
    // A browser refuses addresses of megabytes.
    known.current = statement.length > LINKED_CHARACTERS_MAX ? "" : statement;
    setParams({ query: known.current, engine });
    remember(statement);
    const found: Shown = { ran: statement };
    try {
      // A plan is Spark's.
      const of = before === "" ? { id, engine } : { id };
      found.result = await answered(before + statement, stop.signal, of);
    } catch (failure) {
      const error = stop.signal.aborted ? await own.end : (failure as Error);
      found.error = before === "" ? error : withoutLine(error);
      // Another tab may be open now, or the statement edited.
      const isShown = now.current.tabs.active === tab && editor.current?.text() === statement;
      if (failure instanceof ApiError && isShown) mark(found.error.message);
    } finally {
      setRunning(null);
    }
    setShown((old) => kept(old, tab, found));
  }

  function mark(message: string): void {
    const found = PLACE.exec(message);
    if (found) editor.current?.setError({ line: Number(found[1]), column: Number(found[2]) });
  }

  function cancel(): void {
    if (running === null) return;
    running.end = call("DELETE", `${SQL}/${running.id}`).then(
      () => CANCELLED,
      // 404: it does not run, perhaps because this tab no longer waits for it.
      (error: ApiError) => (error.status === 404 ? CANCELLED : new Error(`the query may still run: ${error.message}`)),
    );
    running.stop.abort();
  }

  const here = shown.get(tabs.active);
  const isRunning = running !== null;
  return (
    <>
      <h1>SQL</h1>
      <Card title="Statement" wide>
        <TabBar tabs={tabs} onChange={show} />
        {failure && <ErrorBox error={failure} />}
        <div ref={host} class="editor" role="tabpanel" aria-label="statement of the tab" />
        <div class="bar">
          <button type="button" disabled={isRunning} onClick={() => void run()} title="Control-Enter">
            run
          </button>
          <button type="button" disabled={!isRunning} onClick={cancel}>
            cancel
          </button>
          <button type="button" disabled={isRunning} onClick={() => void run(EXPLAIN.plan)}>
            explain
          </button>
          <button
            type="button"
            disabled={isRunning}
            title="executes the statement, and shows the rows and times of each operator"
            onClick={() => void run(EXPLAIN.times)}
          >
            explain with times
          </button>
          <label>
            engine{" "}
            <select value={engine} onChange={(event) => setEngine(engineNamed(event.currentTarget.value))}>
              {ENGINES.map((one) => (
                <option key={one} value={one}>
                  {ENGINE_TEXTS[one]}
                </option>
              ))}
            </select>
          </label>
          <span class="quiet" role="status">
            {isRunning
              ? "running …"
              : here?.result &&
                `${exactly(here.result.rows.length, "row")} in ${duration(here.result.tookMs)} ${ANSWERED_BY[here.result.engine] ?? ""}`}
          </span>
        </div>
        {here?.error && <ErrorBox error={here.error} />}
        <History onChoose={write} />
      </Card>
      {here?.result && <Answer result={here.result} statement={here.ran} />}
      <div class="below">
        <RunningQueries />
      </div>
    </>
  );
}

/** An error with the line of the statement, before which another line was sent. */
function withoutLine(error: Error): Error {
  const text = error.message.replace(
    PLACE,
    (_, line: string, column: string) => `line ${Number(line) - 1}, column ${column}`,
  );
  return error instanceof ApiError ? new ApiError(error.status, text) : new Error(text);
}

/** The results of all tabs with a new one, without the oldest ones that are too many. */
function kept(old: Map<string, Shown>, tab: string, found: Shown): Map<string, Shown> {
  const next = new Map(old);
  next.delete(tab);
  next.set(tab, found);
  let rows = 0;
  for (const [id, one] of [...next].reverse()) {
    rows += one.result?.rows.length ?? 0;
    if (id !== tab && rows > KEPT_ROWS_MAX) next.delete(id);
  }
  return next;
}

function TabBar({ tabs, onChange }: { tabs: Tabs; onChange: (next: Tabs) => void }): JSX.Element {
  const list = useRef<HTMLDivElement>(null);
  const choose = (at: number): void => {
    const next = tabs.tabs[(at + tabs.tabs.length) % tabs.tabs.length];
    if (next === undefined) return;
    onChange({ ...tabs, active: next.id });
    list.current?.querySelectorAll("button")[tabs.tabs.indexOf(next)]?.focus();
  };
  return (
    <div class="bar">
      <div role="tablist" aria-label="statements" class="tabs" ref={list}>
        {tabs.tabs.map((one, at) => (
          <button
            key={one.id}
            type="button"
            role="tab"
            aria-selected={one.id === tabs.active}
            tabIndex={one.id === tabs.active ? 0 : -1}
            title={one.text.slice(0, 300)}
            onClick={() => choose(at)}
            onKeyDown={(event) => {
              if (event.key === "ArrowRight") choose(at + 1);
              if (event.key === "ArrowLeft") choose(at - 1);
            }}
          >
            {at + 1}: {one.text.replace(/\s+/g, " ").trim().slice(0, 24) || "empty"}
          </button>
        ))}
      </div>
      <button type="button" onClick={() => onChange(opened(tabs, ""))} disabled={tabs.tabs.length >= TABS_MAX}>
        new tab
      </button>
      <button type="button" onClick={() => onChange(closed(tabs, tabs.active))}>
        close tab
      </button>
    </div>
  );
}

function History({ onChoose }: { onChoose: (text: string) => void }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const [search, setSearch] = useState("");
  const [, setChanges] = useState(0);
  const wanted = search.toLowerCase();
  const found = isOpen ? history().filter((one) => one.text.toLowerCase().includes(wanted)) : [];
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>earlier statements</summary>
      {isOpen && (
        <>
          <p class="bar">
            <label>
              search{" "}
              <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
            </label>
            <button
              type="button"
              onClick={() => {
                forgetHistory();
                setChanges((old) => old + 1);
              }}
            >
              forget all
            </button>
            <span class="quiet">{count(found.length)} in this browser</span>
          </p>
          <ul class="earlier">
            {found.slice(0, HISTORY_SHOWN).map((one) => (
              <li key={one.text}>
                <button type="button" onClick={() => onChoose(one.text)}>
                  <code>{one.text.slice(0, 300)}</code>
                </button>{" "}
                {one.at > 0 && <span class="quiet">{ago(one.at)}</span>}
              </li>
            ))}
          </ul>
        </>
      )}
    </details>
  );
}

const VIEWS = ["plan", "table", "chart", "bars", "heat map", "numbers"] as const;
type View = (typeof VIEWS)[number];
const NEEDS: Record<View, string> = {
  plan: "only for the answer to EXPLAIN",
  table: "",
  chart: "a chart needs a first column and a column of numbers",
  bars: "bars need a first column and a column of numbers",
  "heat map": "a heat map needs two columns of places and a column of numbers after them",
  numbers: "a column of numbers is needed",
};

/** The rows, as a table or a picture, and their download. */
function Answer({ result, statement }: { result: Result; statement: string }): JSX.Element {
  const pictures = useMemo(() => picturesOf(result, statement), [result, statement]);
  const [wanted, setWanted] = useState<View>("table");
  const isPlan = pictures.plan !== undefined;
  // Before anybody can choose another view of the new rows.
  useLayoutEffect(() => setWanted((old) => (isPlan ? "plan" : old === "plan" ? "table" : old)), [result]);
  const view = pictures[wanted] === undefined ? "table" : wanted;
  return (
    <>
      <div class="bar below">
        {VIEWS.filter((one) => one !== "plan" || isPlan).map((one) => (
          <button
            key={one}
            type="button"
            aria-pressed={view === one}
            disabled={pictures[one] === undefined}
            title={pictures[one] === undefined ? NEEDS[one] : undefined}
            onClick={() => setWanted(one)}
          >
            {one}
          </button>
        ))}
        <span>download</span>
        <button type="button" onClick={() => save(new Blob([csvOf(result)], { type: "text/csv" }), "rows.csv")}>
          CSV
        </button>
        <button
          type="button"
          onClick={() => save(new Blob([jsonOf(result)], { type: "application/json" }), "rows.json")}
        >
          JSON
        </button>
        <Action
          label="Parquet"
          hint="runs the statement again: the server writes the file"
          run={async () => {
            const request = requestOf(statement, newId(), "", { resultFormat: "parquet" });
            save(await bytes(SQL, request), "rows.parquet");
          }}
        />
      </div>
      {pictures[view]?.()}
    </>
  );
}

type Pictures = Partial<Record<View, () => JSX.Element>>;

/** What the rows can be shown as. */
function picturesOf(result: Result, statement: string): Pictures {
  const traceOf = rowTraces(result, statement);
  const found: Pictures = { table: () => <Rows result={result} traceOf={traceOf} /> };
  const plan = planOf(result.columns, result.rows);
  if (plan !== null) found.plan = () => <Plan root={plan} />;
  const drawn = seriesOf(result);
  if (drawn !== null) {
    found.chart = () => <RowChart drawn={drawn} bars={false} />;
    found.bars = () => <RowChart drawn={drawn} bars />;
  }
  const heat = heatOf(result);
  if (heat !== null) found["heat map"] = () => <HeatMap heat={heat} />;
  const numbers = numbersOf(result);
  if (numbers !== null) found.numbers = () => <Numbers found={numbers} />;
  return found;
}

function csvOf(result: Result): string {
  const field = (value: unknown): string => {
    const text = value === null ? "" : typeof value === "object" ? exactText(value) : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [result.columns, ...result.rows].map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

function jsonOf(result: Result): string {
  const names = result.columns.map((name) => JSON.stringify(name));
  const rows = result.rows.map((row) => `{${names.map((name, index) => `${name}:${exactText(row[index])}`).join(",")}}`);
  return `[${rows.join(",\n")}]\n`;
}

