// Supervisors: how far behind each is and was, its tasks, its rows and errors, and its commands.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";

import { Action } from "../actions";
import type {
  LagSeries,
  ParseErrors,
  SupervisedTask,
  SupervisorPage,
  SupervisorPayload,
  SupervisorStats,
  SupervisorStatus,
} from "../answers";
import { call, get, withParams } from "../api";
import { Chart } from "../chart";
import { count, duration, exactly, time } from "../format";
import { useLive, useLiveKept } from "../live";
import { useNewest } from "../newest";
import { link, place, setParams } from "../router";
import { SpecDetails } from "../spec_details";
import { Answer, Card, ErrorBox, Figure, Pager, Search, State, Table, type Tone } from "../ui";
import { TasksOf } from "./tasks";
import { messageLink } from "./trace";
import { afterReset, moved, MovedText, OffsetsForm } from "./supervisor_offsets";

const SUPERVISORS = "/druid/indexer/v1/supervisor";
const OWN = "/penstock/v1/supervisors";
const SHOWN = 100;
const SERIES_S = 10;

function toneOf(one: { healthy: boolean; suspended: boolean }): Tone {
  if (one.suspended) return "idle";
  return one.healthy ? "good" : "bad";
}

export function SupervisorState({
  row,
}: {
  row: { healthy: boolean; suspended: boolean; detailedState: string };
}): JSX.Element {
  return <State tone={toneOf(row)}>{row.detailedState.toLowerCase().replaceAll("_", " ")}</State>;
}

export function Supervisors({ parts }: { parts: string[] }): JSX.Element {
  const [id] = parts;
  return id === undefined ? <SupervisorsList /> : <OneSupervisor key={id} id={id} />;
}

function SupervisorsList(): JSX.Element {
  const params = place.value.params;
  const search = params.get("search") ?? "";
  const state = params.get("state") ?? "";
  const order = params.get("order") ?? "";
  const skip = Number(params.get("skip") ?? 0);
  const live = useLiveKept<SupervisorPage>(withParams(OWN, { search, state, order, skip, limit: SHOWN }));
  const change = (changes: Record<string, string>): void => setParams({ skip: undefined, ...changes });
  return (
    <>
      <h1>Supervisors</h1>
      <div class="bar">
        <Search
          label="id or datasource contains"
          value={search}
          onChange={(text) => change({ search: text })}
        />
        <label>
          state{" "}
          <select value={state} onChange={(event) => change({ state: event.currentTarget.value })}>
            <option value="">all</option>
            {["healthy", "unhealthy", "suspended"].map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <label>
          sorted by{" "}
          <select value={order} onChange={(event) => change({ order: event.currentTarget.value })}>
            <option value="">id</option>
            <option value="lag">messages behind</option>
          </select>
        </label>
      </div>
      <Answer live={live}>
        {(found) => (
          <>
            <Table
              caption="supervisors"
              rows={found.supervisors}
              keyOf={(row) => row.id}
              none={
                search === "" && state === ""
                  ? "There is no supervisor. It reads a topic into a datasource, and never stops."
                  : "There is no such supervisor."
              }
              columns={[
                { title: "supervisor", cell: (row) => <a href={link(["supervisors", row.id])}>{row.id}</a> },
                { title: "state", cell: (row) => <SupervisorState row={row} /> },
                {
                  title: "datasource",
                  cell: (row) => <a href={link(["datasources", row.dataSource])}>{row.dataSource}</a>,
                  extra: true,
                },
                { title: "kind", cell: (row) => row.type, extra: true },
                { title: "behind", cell: (row) => count(row.aggregateLag), right: true },
                {
                  title: "waits for",
                  cell: (row) => (row.waits ?? []).map((wait) => `${wait.dependency}: ${wait.error}`).join("; "),
                },
              ]}
            />
            <Pager
              skip={skip}
              limit={SHOWN}
              found={found.found}
              onSkip={(to) => setParams({ skip: to === 0 ? undefined : String(to) })}
            />
          </>
        )}
      </Answer>
    </>
  );
}

function OneSupervisor({ id }: { id: string }): JSX.Element {
  const live = useLive<SupervisorStatus>(`${SUPERVISORS}/${encodeURIComponent(id)}/status`);
  return (
    <>
      <h1>
        <a href={link(["supervisors"])}>Supervisors</a> / {id}
      </h1>
      <Answer live={live}>{(found) => <Parts id={id} found={found.payload} />}</Answer>
    </>
  );
}

const tasksOf = (found: SupervisorPayload): SupervisedTask[] => [
  ...(found.activeTasks ?? []),
  ...(found.publishingTasks ?? []),
];

function Parts({ id, found }: { id: string; found: SupervisorPayload }): JSX.Element {
  const reads = found.stream !== undefined;
  return (
    <div class="grid">
      <Card title="State" wide>
        <Figures found={found} />
        <Commands id={id} found={found} />
      </Card>
      {reads && <Lag id={id} />}
      {reads && (
        <Card title="Task groups" wide>
          <Groups id={id} found={found} />
        </Card>
      )}
      {reads && <Rows id={id} topic={found.type === "penstock" ? found.stream : undefined} />}
      {reads && (
        <Card title="Offsets: go on elsewhere, or read again" wide>
          <OffsetsForm id={id} found={found} />
        </Card>
      )}
      <Card title="Last errors" wide>
        <Table
          caption="last errors"
          rows={found.recentErrors ?? []}
          keyOf={(error) => `${error.timestamp} ${error.exceptionMessage}`}
          none="There is no error."
          columns={[
            { title: "when", cell: (error) => time(Date.parse(error.timestamp)) },
            { title: "error", cell: (error) => error.exceptionMessage },
          ]}
        />
      </Card>
      <Card title="Newest tasks of the datasource" wide>
        <TasksOf datasource={found.dataSource} />
      </Card>
      <Card title="Spec" wide>
        <SpecDetails path={`${SUPERVISORS}/${encodeURIComponent(id)}`} />
      </Card>
    </div>
  );
}

function Figures({ found }: { found: SupervisorPayload }): JSX.Element {
  const waits = [
    ...(found.waits ?? []).map((wait) => `it waits for ${wait.dependency}: ${wait.error}`),
    ...(found.tasksWaitFor ?? []).map((text) => `its tasks wait for ${text}`),
    ...(found.shortOfSlots === undefined ? [] : [found.shortOfSlots]),
  ];
  const range = Object.values(found.boundedOffsets ?? {});
  return (
    <>
      <dl class="figures">
        <Figure label="state" value={<SupervisorState row={found} />} />
        <Figure
          label="datasource"
          value={<a href={link(["datasources", found.dataSource])}>{found.dataSource}</a>}
        />
        {found.stream !== undefined && (
          <>
            <Figure
              label="topic"
              value={
                found.type === "penstock" ? (
                  <a href={link(["topics", found.stream])}>{found.stream}</a>
                ) : (
                  found.stream
                )
              }
            />
            <Figure label="messages not yet persisted" value={count(found.aggregateLag)} />
            <Figure label="tasks that read" value={count(found.activeTasks?.length ?? 0)} />
            <Figure label="tasks that publish" value={count(found.publishingTasks?.length ?? 0)} />
            <Figure label="length of a task" value={duration((found.durationSeconds ?? 0) * 1_000)} />
          </>
        )}
        {range.length > 0 && (
          <Figure
            label="messages of its range"
            value={count(range.reduce((sum, [start, end]) => sum + end - start, 0))}
          />
        )}
        {found.segmentCountAwaitingCompaction !== undefined && (
          <>
            <Figure label="segments to compact" value={count(found.segmentCountAwaitingCompaction)} />
            <Figure label="compacted" value={count(found.segmentCountCompacted)} />
            <Figure label="left out" value={count(found.segmentCountSkipped)} />
          </>
        )}
      </dl>
      {waits.map((text) => (
        <p key={text}>
          <State tone="warn">waiting</State>: {text}
        </p>
      ))}
    </>
  );
}

function Commands({ id, found }: { id: string; found: SupervisorPayload }): JSX.Element {
  const own = `${SUPERVISORS}/${encodeURIComponent(id)}`;
  const reads = found.stream !== undefined;
  const groups = [...new Set((found.activeTasks ?? []).map((task) => task.groupId))];
  const unpublished = Object.entries(found.latestOffsets ?? {}).reduce(
    (sum, [name, latest]) => sum + Math.max(0, latest - (found.committedOffsets?.[name] ?? latest)),
    0,
  );
  return (
    <div class="bar">
      {found.suspended ? (
        <Action
          label="resume"
          about={id}
          run={async () => {
            await call("POST", `${own}/resume`);
            return "resumed";
          }}
        />
      ) : (
        <Action
          label="suspend"
          about={id}
          hint="Its tasks publish what they have read, and end. Nothing is lost."
          run={async () => {
            await call("POST", `${own}/suspend`);
            return "suspended";
          }}
        />
      )}
      {reads && (
        <>
          <Action
            label="hand off now"
            about={`all task groups of ${id}`}
            disabled={groups.length === 0}
            hint={groups.length === 0 ? "No task reads now." : "Its tasks publish what they have read; others go on."}
            run={() => handOff(own, groups)}
          />
          <Action
            label="reset"
            about={id}
            run={async () => {
              await call("POST", `${own}/reset`);
              return "its offsets are forgotten";
            }}
            confirm={{
              question: `Forget the offsets of ${id}?`,
              lost: () => (
                <>
                  <p>{afterResetText(found)}</p>
                  <MovedText change={moved(found.committedOffsets ?? {}, afterReset(found))} />
                </>
              ),
            }}
          />
        </>
      )}
      <Action
        label="terminate"
        about={id}
        run={async () => {
          await call("POST", `${own}/terminate`);
          return "it ends once its tasks have published";
        }}
        confirm={{
          question: `Terminate ${id}?`,
          lost: () =>
            reads ? (
              <ul>
                <li>Its tasks publish the rows that they have read. The datasource stays.</li>
                <li>
                  {exactly(unpublished, "message is", "messages are")} not published now. Those that no task has read stay in the
                  topic, which may delete them from then on.
                </li>
                <li>A supervisor that is created again with this id goes on at its offsets.</li>
              </ul>
            ) : (
              <p>{found.dataSource} is no longer compacted. Tasks that run go on.</p>
            ),
        }}
      />
    </div>
  );
}

function afterResetText(found: SupervisorPayload): string {
  if (found.boundedOffsets !== undefined) return "It begins again at the start of its range.";
  return found.useEarliestOffset
    ? "It begins again at the first message that the topic holds, as its spec says."
    : "It continues at the newest message, as its spec says.";
}

async function handOff(own: string, groups: number[]): Promise<string> {
  await call("POST", `${own}/taskGroups/handoff`, { taskGroupIds: groups });
  return "a hand-off begins";
}

/** The series of the last hour, with a gap where the overlord saw nothing. */
function Lag({ id }: { id: string }): JSX.Element {
  const live = useLive<LagSeries>(`${OWN}/${encodeURIComponent(id)}/lag`, SERIES_S);
  const found = live.value;
  const drawn = useMemo(() => (found === undefined ? null : withGaps(found)), [found]);
  const messages = useMemo(() => [{ label: "messages", values: drawn?.messages ?? [] }], [drawn]);
  const seconds = useMemo(() => [{ label: "seconds", values: drawn?.seconds ?? [] }], [drawn]);
  const chart = (label: string, series: typeof messages): JSX.Element => (
    <Answer live={live}>
      {() =>
        drawn === null || drawn.times.length < 2 ? (
          <p class="quiet">The overlord keeps the lag of the last hour. There are no two samples yet.</p>
        ) : (
          <Chart label={label} x={drawn.times} isTime series={series} />
        )
      }
    </Answer>
  );
  return (
    <div class="grid">
      <Card title="Messages behind">{chart("messages that were not persisted, in the last hour", messages)}</Card>
      <Card title="Seconds behind">
        {chart("age of the oldest message that was not persisted, in seconds, in the last hour", seconds)}
      </Card>
    </div>
  );
}

function withGaps(found: LagSeries): { times: number[]; messages: (number | null)[]; seconds: (number | null)[] } {
  const times: number[] = [];
  const messages: (number | null)[] = [];
  const seconds: (number | null)[] = [];
  found.times.forEach((at, index) => {
    const before = times.at(-1);
    if (before !== undefined && at - before > 6 * found.everyMs) {
      times.push(before + 1);
      messages.push(null);
      seconds.push(null);
    }
    times.push(at);
    messages.push(found.messages[index] ?? null);
    seconds.push((found.oldestMs[index] ?? 0) / 1_000);
  });
  return { times, messages, seconds };
}

function Groups({ id, found }: { id: string; found: SupervisorPayload }): JSX.Element {
  const own = `${SUPERVISORS}/${encodeURIComponent(id)}`;
  return (
    <Table
      caption="tasks of the supervisor"
      rows={tasksOf(found)}
      keyOf={(task) => task.id}
      none="No task runs now."
      columns={[
        { title: "group", cell: (task) => count(task.groupId), right: true },
        { title: "task", cell: (task) => <a href={link(["tasks", task.id])}>{task.id}</a> },
        { title: "phase", cell: (task) => (task.phase ?? task.type).toLowerCase() },
        {
          title: "behind",
          cell: (task) => count(Object.values(task.lag ?? {}).reduce((sum, one) => sum + one, 0)),
          right: true,
        },
        {
          title: "hand-off in",
          cell: (task) => (task.type === "ACTIVE" ? duration((task.remainingSeconds ?? 0) * 1_000) : "publishes"),
          right: true,
          extra: true,
        },
        { title: "waits for", cell: (task) => task.waitsFor ?? "", extra: true },
        {
          title: "actions",
          cell: (task) =>
            task.type === "ACTIVE" && (
              <Action
                label="hand off"
                about={`task group ${task.groupId}`}
                run={() => handOff(own, [task.groupId])}
              />
            ),
        },
      ]}
    />
  );
}

const OUTCOMES: [string, string][] = [
  ["processed", "stored"],
  ["unparseable", "not parseable"],
  ["thrownAwayLate", "too late"],
  ["thrownAwayEarly", "too early"],
  ["thrownAwayFiltered", "filtered"],
];

/** Rows of the running tasks by outcome, with examples of those that could not be parsed. */
function Rows({ id, topic }: { id: string; topic: string | undefined }): JSX.Element {
  const own = `${SUPERVISORS}/${encodeURIComponent(id)}`;
  const stats = useLive<SupervisorStats>(`${own}/stats`);
  const [errors, setErrors] = useState<ParseErrors>();
  const [failure, setFailure] = useState<Error>();
  const tasks = Object.values(stats.value ?? {}).flatMap((group) => Object.values(group));
  const sums = Object.fromEntries(
    OUTCOMES.map(([name]) => [
      name,
      tasks.reduce((sum, one) => sum + (one.totals.buildSegments[name] ?? 0), 0),
    ]),
  );
  const rate = tasks.reduce((sum, one) => sum + (one.movingAverages.buildSegments["1m"]?.["processed"] ?? 0), 0);
  const bad = sums["unparseable"] ?? 0;
  const newest = useNewest();
  useEffect(() => {
    if (bad === 0) return;
    void newest.ask(
      (signal) => get<ParseErrors>(`${own}/parseErrors`, signal),
      (found) => {
        setErrors(found);
        setFailure(undefined);
      },
      setFailure,
    );
  }, [own, bad]);
  // Replicas have read the same messages.
  const examples = [
    ...new Map(
      Object.values(errors ?? {})
        .flatMap((group) => Object.values(group).flat())
        .map((one) => [`${one.partition} ${one.offset}`, one]),
    ).values(),
  ];
  return (
    <Card title="Rows of the running tasks" wide>
      <Answer live={stats}>
        {() => (
          <dl class="figures">
            <Figure label="stored a second" value={count(Math.round(rate * 10) / 10)} />
            {OUTCOMES.map(([name, text]) => (
              <Figure key={name} label={text} value={count(sums[name])} />
            ))}
          </dl>
        )}
      </Answer>
      {failure && <ErrorBox error={failure} />}
      {bad > 0 && examples.length > 0 && (
        <Table
          caption="messages that could not be parsed"
          rows={examples.slice(0, 20)}
          keyOf={(one) => `${one.partition} ${one.offset}`}
          none=""
          columns={[
            { title: "partition", cell: (one) => one.partition, right: true, extra: true },
            {
              title: "offset",
              cell: (one) =>
                topic === undefined ? (
                  count(one.offset)
                ) : (
                  <a href={messageLink(topic, one.partition, one.offset)}>{count(one.offset)}</a>
                ),
              right: true,
            },
            { title: "reason", cell: (one) => one.reason },
            { title: "message", cell: (one) => <code>{one.input}</code> },
          ]}
        />
      )}
    </Card>
  );
}
