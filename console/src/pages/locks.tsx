// Locks: which task has locked which time of a datasource, and who waits for it.
import type { JSX } from "preact";

import type { LockTable, TableLock, WaitingTask } from "../answers";
import { withParams } from "../api";
import { ago, count, intervalText, shortTime } from "../format";
import { useLiveKept } from "../live";
import { link, place, setParams } from "../router";
import { Answer, Card, Figure, Search, State, Table } from "../ui";
import { TaskLinks } from "./workers";

const LOCKS = "/penstock/v1/locks";
const LIMIT = 500;
const DRAWN = 60;
const ROW_PX = 24;
const NAME_PX = 330;
const WIDTH_PX = 1_000;
const BAR_MIN_PX = 6;
const YEAR_MS = 366 * 86_400_000;

export function Locks(): JSX.Element {
  const datasource = place.value.params.get("datasource") ?? "";
  const live = useLiveKept<LockTable>(withParams(LOCKS, { datasource, limit: LIMIT }));
  const chosen = place.value.params.get("task") ?? "";
  return (
    <>
      <h1>
        <a href={link(["tasks"])}>Tasks</a> / locks
      </h1>
      <div class="bar">
        <Search
          label="name of a datasource"
          value={datasource}
          onChange={(text) => setParams({ datasource: text })}
        />
        {datasource !== "" && <a href={link(["locks"])}>all datasources</a>}
      </div>
      <Answer live={live}>{(found) => <Found table={found} chosen={chosen} />}</Answer>
    </>
  );
}

function Found({ table, chosen }: { table: LockTable; chosen: string }): JSX.Element {
  return (
    <div class="grid">
      <Card title="Who has locked what" wide>
        <dl class="figures">
          <Figure label="locks" value={`${count(table.locks.length)}${table.hasMoreLocks ? " and more" : ""}`} />
          <Figure label="tasks that wait for locks" value={count(table.waitingTasks)} />
        </dl>
        <Times table={table} chosen={chosen} />
        <Table
          caption="locks"
          rows={table.locks}
          keyOf={(one) => `${one.dataSource} ${one.interval} ${one.groupId} ${one.type} ${one.partitionId ?? ""}`}
          none="No lock is held that you may see."
          columns={[
            {
              title: "datasource",
              cell: (one) => <a href={link(["locks"], { datasource: one.dataSource })}>{one.dataSource}</a>,
            },
            {
              title: "time",
              cell: (one) =>
                intervalText(one.interval) + (one.partitionId === undefined ? "" : `, partition ${one.partitionId}`),
            },
            {
              title: "lock",
              cell: (one) =>
                one.revoked ? (
                  <State tone="bad">{one.type.toLowerCase()}, revoked</State>
                ) : (
                  <State tone="busy">{one.type.toLowerCase()}</State>
                ),
            },
            { title: "priority", cell: (one) => count(one.priority), right: true, extra: true },
            { title: "held by", cell: (one) => <TaskLinks ids={one.taskIds} total={one.tasks} /> },
            { title: "group", cell: (one) => one.groupId, extra: true },
            { title: "since", cell: (one) => ago(Date.parse(one.since)), right: true, extra: true },
            {
              title: "who waits",
              cell: (one) => {
                const waiting = behind(one, table.waiting);
                return waiting.length === 0 ? "–" : <TaskLinks ids={waiting.map((task) => task.task)} />;
              },
            },
          ]}
        />
        {table.hasMoreLocks && <p class="quiet">Only {count(LIMIT)} locks are shown: name a datasource above.</p>}
      </Card>
      <Card title="Who waits for a lock" wide>
        <Table
          caption="tasks that wait for locks"
          rows={table.waiting}
          keyOf={(one) => one.task}
          none="No task waits for a lock."
          columns={[
            { title: "task", cell: (one) => <a href={link(["tasks", one.task])}>{one.task}</a> },
            { title: "datasource", cell: (one) => one.dataSource, extra: true },
            {
              title: "wants",
              cell: (one) =>
                one.requests.length === 0
                  ? "the decision of the overlord"
                  : one.requests.map((request) => (
                      <div key={`${request.type} ${request.interval}`}>
                        {request.type.toLowerCase()} {intervalText(request.interval)}
                      </div>
                    )),
            },
            {
              title: "held by",
              cell: (one) => <TaskLinks ids={[...new Set(one.requests.flatMap((request) => request.heldBy))]} />,
            },
            { title: "priority", cell: (one) => count(one.priority), right: true, extra: true },
            { title: "since", cell: (one) => ago(Date.parse(one.created)), right: true },
          ]}
        />
        {table.waitingTasks > table.waiting.length && (
          <p class="quiet">{count(table.waitingTasks - table.waiting.length)} more wait.</p>
        )}
      </Card>
    </div>
  );
}

function behind(lock: TableLock, waiting: WaitingTask[]): WaitingTask[] {
  const holders = new Set(lock.taskIds);
  const mine = rangeOf(lock.interval);
  return waiting.filter(
    (one) =>
      one.dataSource === lock.dataSource &&
      one.requests.some((request) => {
        const other = rangeOf(request.interval);
        return other.from < mine.to && mine.from < other.to && request.heldBy.some((id) => holders.has(id));
      }),
  );
}

interface Range {
  from: number;
  to: number;
}

function rangeOf(interval: string): Range {
  const [from = "", to = ""] = interval.split("/", 2);
  return { from: Date.parse(from) || -Infinity, to: Date.parse(to) || Infinity };
}

interface Bar extends Range {
  kind: "held" | "revoked" | "wanted";
  title: string;
}

/** Tasks below each other, their locks from left to right in time; those that wait have an outline. */
function Times({ table, chosen }: { table: LockTable; chosen: string }): JSX.Element | null {
  const bars = new Map<string, Bar[]>();
  const add = (task: string, bar: Bar): void => {
    const found = bars.get(task);
    if (found) found.push(bar);
    else bars.set(task, [bar]);
  };
  for (const lock of table.locks)
    for (const task of lock.taskIds)
      add(task, {
        ...rangeOf(lock.interval),
        kind: lock.revoked ? "revoked" : "held",
        title: `${lock.dataSource} ${intervalText(lock.interval)}, ${lock.type.toLowerCase()}`,
      });
  for (const one of table.waiting)
    for (const request of one.requests)
      add(one.task, {
        ...rangeOf(request.interval),
        kind: "wanted",
        title: `${one.dataSource} ${intervalText(request.interval)}, wanted`,
      });
  const rows = [...bars].slice(0, DRAWN);
  // Locks on all times would leave nothing to see of the others.
  const ranges = rows.flatMap(([, found]) => found).filter((one) => one.to - one.from < 100 * YEAR_MS);
  if (rows.length === 0) return null;
  const first = Math.min(...ranges.map((one) => one.from));
  const last = Math.max(...ranges.map((one) => one.to));
  const from = Number.isFinite(first) ? first : 0;
  const span = Number.isFinite(last) && last > from ? last - from : 1;
  const at = (ms: number): number =>
    NAME_PX + Math.min(1, Math.max(0, (ms - from) / span)) * (WIDTH_PX - NAME_PX - 10);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="locks over time">
      <svg class="locks" width={WIDTH_PX} height={rows.length * ROW_PX + 26} role="group" aria-label="locks over time">
        <text x={NAME_PX} y={14}>
          {ranges.length > 0 ? shortTime(from) : "all times"}
        </text>
        <text x={WIDTH_PX - 10} y={14} text-anchor="end">
          {ranges.length > 0 && shortTime(from + span)}
        </text>
        {rows.map(([task, found], index) => (
          <a
            key={task}
            href={link(["tasks", task])}
            class={task === chosen ? "chosen" : ""}
            aria-label={`${task}: ${found.map((bar) => bar.title).join("; ")}`}
          >
            <text x={4} y={index * ROW_PX + 40}>
              {task.length > 44 ? `${task.slice(0, 43)}…` : task}
            </text>
            {found.map((bar, number) => (
              <rect
                key={number}
                class={bar.kind}
                x={at(bar.from)}
                y={index * ROW_PX + 26}
                width={Math.max(BAR_MIN_PX, at(bar.to) - at(bar.from))}
                height={ROW_PX - 6}
                rx="3"
              >
                <title>{bar.title}</title>
              </rect>
            ))}
          </a>
        ))}
      </svg>
      {bars.size > DRAWN && <p class="quiet">{count(bars.size - DRAWN)} more tasks are in the tables.</p>}
    </div>
  );
}
