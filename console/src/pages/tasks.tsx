// Tasks: their states, why one waits, its log and its rows.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import type { TaskReport, TaskRow, TaskSearch, TaskSegments, TaskWait, TaskWhy } from "../answers";
import { Action } from "../actions";
import { address, ApiError, asJson, call, errorText, FROM_SCRIPT, get, withParams } from "../api";
import { ago, count, duration, exactly, intervalText, size, time } from "../format";
import { useLive, useLiveKept } from "../live";
import { useAsked } from "../newest";
import { link, place, setParams } from "../router";
import { Answer, Card, ErrorBox, Figure, Search, State, Table, type Tone } from "../ui";
import { TaskLinks, Workers } from "./workers";

const TASKS = "/druid/indexer/v1";
const SHOWN = 200;
const OF_OTHERS = 20;
const SEGMENTS_S = 15;
const TAIL_BYTES = 64 << 10;
const LOG_MS = 2_000;
const LINES_MAX = 2_000;
const LINE_CHARACTERS_MAX = 20_000;
const END_PX = 20;

const STATES: Record<string, [Tone, string]> = {
  RUNNING: ["busy", "running"],
  PENDING: ["warn", "waits for a worker"],
  WAITING: ["warn", "waits for a lock"],
  SUCCESS: ["good", "succeeded"],
  FAILED: ["bad", "failed"],
};

export function stateOf(row: TaskRow): string {
  return row.statusCode === "RUNNING" ? row.runnerStatusCode : row.statusCode;
}

export function TaskState({ row }: { row: TaskRow }): JSX.Element {
  const [tone, text] = STATES[stateOf(row)] ?? ["idle", stateOf(row).toLowerCase()];
  return <State tone={tone}>{text}</State>;
}

export function Tasks({ parts }: { parts: string[] }): JSX.Element {
  const [task] = parts;
  return task === undefined ? <TasksList /> : <OneTask key={task} id={task} />;
}

function TasksList(): JSX.Element {
  const params = place.value.params;
  const search = params.get("search") ?? "";
  const wanted = params.get("state") ?? "";
  const live = useLiveKept<TaskSearch>(
    withParams("/penstock/v1/tasks", { search, state: wanted.toLowerCase(), limit: SHOWN }),
  );
  return (
    <>
      <h1>Tasks</h1>
      <Workers />
      <div class="bar below">
        <Search
          label="id or datasource contains"
          value={search}
          onChange={(text) => setParams({ search: text })}
        />
        <label>
          state{" "}
          <select value={wanted} onChange={(event) => setParams({ state: event.currentTarget.value })}>
            <option value="">all</option>
            {Object.entries(STATES).map(([value, [, text]]) => (
              <option key={value} value={value}>
                {text}
              </option>
            ))}
          </select>
        </label>
        <a href={link(["locks"])}>locks of all tasks</a>
      </div>
      <Answer live={live}>
        {(found) => {
          const listed = found.tasks.filter((row) => row.statusCode === "RUNNING").length;
          return (
            <>
              <dl class="figures">
                <Figure label="running" value={count(found.counts.running)} />
                <Figure label="wait for a worker" value={count(found.counts.pending)} />
                <Figure
                  label="wait for a lock"
                  value={<a href={link(["locks"])}>{count(found.counts.waiting)}</a>}
                />
              </dl>
              <Table
                caption="tasks"
                rows={found.tasks}
                keyOf={(row) => row.id}
                none="There is no such task."
                columns={[
                  { title: "task", cell: (row) => <a href={link(["tasks", row.id])}>{row.id}</a> },
                  { title: "state", cell: (row) => <TaskState row={row} /> },
                  {
                    title: "datasource",
                    cell: (row) => <a href={link(["datasources", row.dataSource])}>{row.dataSource}</a>,
                    extra: true,
                  },
                  { title: "kind", cell: (row) => row.type, extra: true },
                  { title: "created", cell: (row) => ago(Date.parse(row.createdTime)), right: true },
                  {
                    title: "took",
                    cell: (row) => (row.duration < 0 ? "–" : duration(row.duration)),
                    right: true,
                    extra: true,
                  },
                ]}
              />
              {(found.activeFound > listed || found.hasMoreEnded) && (
                <p class="quiet">
                  {found.activeFound > listed && `${count(found.activeFound - listed)} more active tasks. `}
                  {found.hasMoreEnded && `Only the newest ${count(SHOWN)} ended tasks are shown. `}
                  Write a part of the id or of the datasource above.
                </p>
              )}
            </>
          );
        }}
      </Answer>
    </>
  );
}

function OneTask({ id }: { id: string }): JSX.Element {
  const path = `${TASKS}/task/${encodeURIComponent(id)}`;
  const why = useLive<TaskWhy>(`${path}/why`);
  const report = useLive<TaskReport>(`${path}/reports`);
  return (
    <>
      <h1>
        <a href={link(["tasks"])}>Tasks</a> / {id}
      </h1>
      <div class="grid">
        <Card title="State" wide>
          <Answer live={why}>
            {(found) => (
              <>
                <Why found={found} />
                {found.status.statusCode === "RUNNING" && <Stop id={id} kind={found.status.type} />}
              </>
            )}
          </Answer>
        </Card>
        <Card title="Rows" wide>
          {report.error?.status === 404 ? (
            <p class="quiet">The task has no report yet.</p>
          ) : (
            <Answer live={report}>{(found) => <Rows report={found} />}</Answer>
          )}
        </Card>
        <Card title="Segments" wide>
          <Segments path={`${path}/segments`} />
        </Card>
        <Card
          title="Log"
          wide
          more={
            <a href={address(`${path}/log?offset=0`)} download={`${id}.log`}>
              download
            </a>
          }
        >
          <Log path={`${path}/log`} />
        </Card>
      </div>
    </>
  );
}

/** What the task published: it changes seldom, and costs a search. */
function Segments({ path }: { path: string }): JSX.Element {
  const live = useLive<TaskSegments>(path, SEGMENTS_S);
  return (
    <Answer live={live}>
      {(found) => (
        <>
          {found.publishes.length > 0 && (
            <p>
              {exactly(found.publishes.length, "publish", "publishes")}, the newest{" "}
              {time(Date.parse(found.publishes[0]?.publishedAt ?? ""))}; {exactly(found.count, "segment")} of{" "}
              <a href={link(["datasources", found.dataSource])}>{found.dataSource}</a>
              {found.count === 1 ? " has its rows" : " have its rows"}
              {found.count > found.segments.length && `, ${count(found.segments.length)} of them below`}
            </p>
          )}
          <Table
            caption="segments that the task published"
            rows={found.segments}
            keyOf={(one) => one.segment}
            none="The task has published no segment that exists."
            columns={[
              { title: "interval", cell: (one) => intervalText(one.interval) },
              { title: "version", cell: (one) => one.version },
              { title: "partition", cell: (one) => one.partition, right: true, extra: true },
              { title: "size", cell: (one) => size(one.bytes), right: true },
              { title: "rows", cell: (one) => count(one.rows), right: true },
              {
                title: "state",
                cell: (one) => <State tone={one.used ? "good" : "idle"}>{one.used ? "in use" : "unused"}</State>,
              },
            ]}
          />
        </>
      )}
    </Answer>
  );
}

function Stop({ id, kind }: { id: string; kind: string }): JSX.Element {
  const isStream = kind === "index_penstock";
  return (
    <Action
      label="stop"
      about={id}
      run={async () => {
        await call("POST", `${TASKS}/task/${encodeURIComponent(id)}/shutdown`);
        return "it is being stopped";
      }}
      confirm={{
        question: `Stop task ${id}?`,
        lost: () => (
          <ul>
            <li>It ends as failed. What it has not published is not visible to queries afterwards.</li>
            <li>
              {isStream
                ? "Its supervisor starts another task, which reads the same messages again. To end reading, suspend the supervisor."
                : "Nothing starts it again: submit it once more if you need its rows."}
            </li>
          </ul>
        ),
      }}
    />
  );
}

export function Why({ found }: { found: TaskWhy }): JSX.Element {
  const row = found.status;
  return (
    <>
      <dl class="figures">
        <Figure label="state" value={<TaskState row={row} />} />
        <Figure
          label="datasource"
          value={<a href={link(["datasources", row.dataSource])}>{row.dataSource}</a>}
        />
        <Figure label="kind" value={row.type} />
        <Figure label="created" value={time(Date.parse(row.createdTime))} />
        {row.duration >= 0 && <Figure label="took" value={duration(row.duration)} />}
      </dl>
      {row.errorMsg !== null && <ErrorBox error={new Error(row.errorMsg)} />}
      {found.waits.map((wait) => (
        <WaitBox key={`${wait.kind} ${wait.text}`} wait={wait} row={row} />
      ))}
    </>
  );
}

const WAITS: Record<TaskWait["kind"], string> = {
  locks: "It waits for a lock",
  line: "It waits behind others for a lock",
  slots: "It waits for a worker with a free slot",
  worker: "It waits for its worker",
  publish: "It waits for a publish",
  retry: "It waits for its next try",
  dependency: "It waits for another service",
};

/** One reason why a task waits, with links to what it waits for. */
function WaitBox({ wait, row }: { wait: TaskWait; row: TaskRow }): JSX.Element {
  return (
    <section class="wait">
      <p>
        <State tone="warn">{WAITS[wait.kind]}</State>: {wait.text}
      </p>
      {wait.locks.length > 0 && (
        <Table
          caption="locks that the task waits for"
          rows={wait.locks}
          keyOf={(one) => `${one.type} ${one.interval} ${one.groupId}`}
          none=""
          columns={[
            { title: "held by", cell: (one) => <TaskLinks ids={one.taskIds} /> },
            { title: "lock", cell: (one) => one.type.toLowerCase() },
            { title: "time", cell: (one) => intervalText(one.interval) },
            { title: "priority", cell: (one) => count(one.priority), right: true, extra: true },
            { title: "since", cell: (one) => ago(one.sinceMs), right: true },
          ]}
        />
      )}
      {wait.workers.length > 0 && (
        <Table
          caption="workers that cannot run the task now"
          rows={wait.workers}
          keyOf={(one) => one.worker}
          none=""
          columns={[
            { title: "worker", cell: (one) => one.worker },
            { title: "why not", cell: (one) => one.reason },
            { title: "its tasks", cell: (one) => <TaskLinks ids={one.taskIds} /> },
          ]}
        />
      )}
      {(wait.kind === "locks" || wait.kind === "line") && (
        <a href={link(["locks"], { datasource: row.dataSource, task: row.id })}>all locks of {row.dataSource}</a>
      )}
      {(wait.kind === "slots" || wait.kind === "worker") && <a href={link(["tasks"])}>all workers and slots</a>}
    </section>
  );
}

const OUTCOMES: [string, string][] = [
  ["processed", "stored"],
  ["processedWithError", "stored with errors"],
  ["unparseable", "not parseable"],
  ["thrownAway", "left out"],
  ["thrownAwayLate", "of these too late"],
  ["thrownAwayEarly", "of these too early"],
  ["thrownAwayFiltered", "of these filtered"],
];

const ENDED = new Set(["COMPLETED", "NOT_STARTED"]);

/** How far a running batch task is. */
function BatchProgress({ report }: { report: TaskReport }): JSX.Element | null {
  const found = report.ingestionStatsAndErrors?.payload ?? {};
  const { ingestionState, partsDone = 0, partsTotal = 0, filesRead = 0, filesTotal = 0 } = found;
  if (ingestionState === undefined || found.partsTotal === undefined || ENDED.has(ingestionState)) return null;
  return (
    <>
      <dl class="figures">
        <Figure label="phase" value={ingestionState.toLowerCase().replaceAll("_", " ")} />
        <Figure label="rows read" value={count(found.rowsRead)} />
        {filesTotal > 0 && <Figure label="input files read" value={`${count(filesRead)} of ${count(filesTotal)}`} />}
        <Figure label="rows written" value={count(found.rowsWritten)} />
        <Figure label="parts of the work" value={`${count(partsDone)} of ${count(partsTotal)}`} />
      </dl>
      {partsTotal > 0 && <progress max={partsTotal} value={partsDone} aria-label="parts of the work that are done" />}
    </>
  );
}

export function Rows({ report }: { report: TaskReport }): JSX.Element {
  const payload = report.ingestionStatsAndErrors?.payload;
  const totals = payload?.rowStats?.["buildSegments"] ?? {};
  const bad = payload?.unparseableEvents?.["buildSegments"] ?? [];
  return (
    <>
      <BatchProgress report={report} />
      <dl class="figures">
        {OUTCOMES.filter(([name]) => name in totals).map(([name, text]) => (
          <Figure key={name} label={text} value={count(totals[name])} />
        ))}
      </dl>
      {bad.length > 0 && (
        <Table
          caption="rows that could not be parsed"
          rows={bad.slice(0, 20)}
          keyOf={(one) => JSON.stringify(one)}
          none=""
          columns={[
            { title: "reason", cell: (one) => (one.details ?? []).join("; ") },
            { title: "row", cell: (one) => <code>{one.input}</code> },
          ]}
        />
      )}
      <details>
        <summary>the whole report as JSON</summary>
        <pre class="log" tabIndex={0}>
          {JSON.stringify(report, null, 2)}
        </pre>
      </details>
    </>
  );
}

/** The lines with a piece of text that follows them: it may continue the last line. */
function continued(lines: string[], text: string): string[] {
  const [first = "", ...rest] = text.split("\n");
  return [...lines.slice(0, -1), (lines.at(-1) ?? "") + first, ...rest]
    .slice(-LINES_MAX)
    .map((line) => (line.length > LINE_CHARACTERS_MAX ? `…${line.slice(-LINE_CHARACTERS_MAX)}` : line));
}

/** The end of a log, which follows the task while its end is in sight. */
export function Log({ path }: { path: string }): JSX.Element {
  const [lines, setLines] = useState<string[]>([]);
  const [error, setError] = useState<Error>();
  const [isMissing, setMissing] = useState(false);
  const box = useRef<HTMLPreElement>(null);
  const isAtEnd = useRef(true);
  useEffect(() => {
    const stopped = new AbortController();
    const decoder = new TextDecoder(); // a piece may end within a character
    let next = -TAIL_BYTES;
    let timer: number | undefined;
    async function read(): Promise<void> {
      if (!document.hidden) await readOn();
      if (!stopped.signal.aborted) timer = window.setTimeout(() => void read(), LOG_MS);
    }
    async function readOn(): Promise<void> {
      try {
        const response = await fetch(address(`${path}?offset=${next}&optional=true`), {
          headers: FROM_SCRIPT,
          signal: stopped.signal,
        });
        const found = new Uint8Array(await response.arrayBuffer());
        if (!response.ok) {
          const text = new TextDecoder().decode(found);
          throw new ApiError(response.status, errorText(response.status, asJson(text)));
        }
        // A task that waits has no log yet.
        setMissing(response.status === 204);
        setError(undefined);
        if (found.length > 0) {
          // Of the bytes: what is not UTF-8 has another length as text.
          next = Number(response.headers.get("X-Penstock-Log-Offset") ?? 0) + found.length;
          const text = decoder.decode(found, { stream: true });
          setLines((before) => continued(before, text));
        }
      } catch (failure) {
        if (stopped.signal.aborted) return;
        setError(failure instanceof ApiError ? failure : new ApiError(0, errorText(0, null)));
      }
    }
    void read();
    return () => {
      stopped.abort();
      window.clearTimeout(timer);
    };
  }, [path]);
  useEffect(() => {
    if (box.current !== null && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  return (
    <>
      {error && <ErrorBox error={error} />}
      <pre
        class="log"
        tabIndex={0}
        ref={box}
        onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
          isAtEnd.current = scrollHeight - scrollTop - clientHeight < END_PX;
        }}
      >
        {lines.length === 0 ? (isMissing ? "There is no log." : "The log is empty.") : lines.join("\n")}
      </pre>
    </>
  );
}

/** Tasks of a datasource or a supervisor, newest first, for other pages. */
export function TasksOf({ datasource }: { datasource: string }): JSX.Element {
  const { value, error } = useAsked<TaskSearch>(datasource, (signal) =>
    get(withParams("/penstock/v1/tasks", { datasource, limit: OF_OTHERS }), signal),
  );
  if (error) return <ErrorBox error={error} />;
  return (
    <Table
      caption={`tasks of ${datasource}`}
      rows={value?.tasks ?? []}
      keyOf={(row) => row.id}
      none={value === undefined ? "waiting for the server …" : "There is no task."}
      columns={[
        { title: "task", cell: (row) => <a href={link(["tasks", row.id])}>{row.id}</a> },
        { title: "state", cell: (row) => <TaskState row={row} /> },
        { title: "created", cell: (row) => time(Date.parse(row.createdTime)), extra: true },
      ]}
    />
  );
}
