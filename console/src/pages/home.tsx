// Does everything work? The whole pipe at one glance, and what waits or has failed.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import type {
  Bulletins,
  ClusterStatus,
  DatasourcePage,
  FlowSummary,
  Peek,
  RunningQuery,
  SupervisorPage,
  TaskSearch,
  TopicList,
  TopicRow,
} from "../answers";
import { BROKER, get, serverNow, withParams } from "../api";
import { ago, count, counted, duration, exactly, short, size, time } from "../format";
import { useLive, useLiveKept, type Live } from "../live";
import { useNewest } from "../newest";
import { useCountedUntil, useRates } from "../rates";
import { link } from "../router";
import { Answer, Card, Figure, isRefused, State, Table, type Tone } from "../ui";
import { HostCard } from "./host";
import { SupervisorState } from "./supervisors";

const HOUR_MS = 3_600_000;
const SHOWN = 8;
const TASKS = 50;
const WAITS_SHOWN = 50;
/** How the topics of dead letters end, unless a spec or a channel names another one. */
const LETTERS = ".dead-letter";
const LETTER_TOPICS = 8;
const LETTER_PARTITIONS = 8;
const LETTERS_MS = 300_000;
const BAD_LEVELS = new Set(["WARNING", "ERROR", "CRITICAL"]);

// The page stays open all day, in many tabs: it asks seldom, and for numbers and not for lists.
const OFTEN_S = 5;
const SELDOM_S = 10;
const RARELY_S = 30;

export function Home(): JSX.Element {
  const status = useLive<ClusterStatus>("/status", SELDOM_S);
  // A process that has not started yet is no failure.
  const started = <T,>({ error, ...live }: Live<T>): Live<T> =>
    error === undefined || (error.status === 503 && status.value?.starting) ? live : { ...live, error };
  const topics = started(
    useLive<TopicList>(withParams(`${BROKER}/stats/topics`, { order: "messages", limit: SHOWN }), OFTEN_S),
  );
  const flow = started(
    useLive<FlowSummary>(withParams("/flow/status", { summary: true, open: "[]", max: 0 }), SELDOM_S),
  );
  const bulletins = useLive<Bulletins>("/flow/bulletins", SELDOM_S);
  const supervisors = started(
    useLive<SupervisorPage>(
      withParams("/penstock/v1/supervisors", { order: "attention", sums: true, limit: SHOWN }),
      SELDOM_S,
    ),
  );
  const tasks = started(
    useLive<TaskSearch>(
      withParams("/penstock/v1/tasks", {
        state: "waiting,pending,failed",
        endedWithinSeconds: HOUR_MS / 1_000,
        limit: TASKS,
      }),
      OFTEN_S,
    ),
  );
  const [order, setOrder] = useState("newest");
  const datasources = useLiveKept<DatasourcePage>(
    withParams("/penstock/v1/datasources", { order, sums: true, limit: SHOWN }),
    SELDOM_S,
  );
  const queries = useLive<RunningQuery[]>("/penstock/v1/queries", OFTEN_S);
  const letters = useNewLetters();
  const failures = failuresOf(tasks.value, bulletins.value);
  const rates = useRates();
  const rate = topics.value && rates("messages", topics.value.message_count, topics.value.at);
  const byteRate = topics.value && rates("bytes", topics.value.message_bytes, topics.value.at);
  const flowUntil = useCountedUntil(flow.at);
  const flowRate = flow.value && rates("flow", flow.value.totals.in + flow.value.totals.created, flowUntil);
  return (
    <>
      <h1>
        <Health
          status={status}
          troubles={[
            ...counting(flow.value?.stuck.length, "component that cannot run", "components that cannot run"),
            ...counting(flow.value?.totals.full, "full queue"),
            ...counting(failures.length, "failure in the last hour", "failures in the last hour"),
            ...counting(letters.length, "topic with new dead letters", "topics with new dead letters"),
          ]}
        />
      </h1>
      <Card title="The pipe" wide>
        <Pipe
          rates={{ messages: rate, bytes: byteRate, flow: flowRate }}
          {...{ topics, flow, supervisors, tasks, datasources, queries }}
        />
      </Card>
      <div class="grid below">
        <Card title="What waits, and for what" wide>
          <Waits {...{ status, flow, supervisors, tasks }} />
        </Card>
        <Card title="Failed in the last hour" wide>
          <Failed tasks={tasks} failures={failures} letters={letters} />
        </Card>
        <Card
          title="How new is the data"
          more={
            <span class="bar">
              <label>
                first{" "}
                <select value={order} onChange={(event) => setOrder(event.currentTarget.value)}>
                  <option value="newest">the newest</option>
                  <option value="oldest">the oldest</option>
                  <option value="bytes">the largest</option>
                </select>
              </label>
              <a href={link(["datasources"])}>all datasources</a>
            </span>
          }
          wide
        >
          <Answer live={datasources}>{(found) => <NewData found={found} />}</Answer>
        </Card>
        <div class="grid">
          <Card title="Supervisors" more={<a href={link(["supervisors"])}>all supervisors</a>}>
            <Answer live={supervisors}>
              {(found) => (
                <Table
                  caption="supervisors that need attention first"
                  rows={found.supervisors}
                  keyOf={(row) => row.id}
                  none="There is no supervisor yet. It makes a datasource from a topic."
                  columns={[
                    { title: "supervisor", cell: (row) => <a href={link(["supervisors", row.id])}>{row.id}</a> },
                    {
                      title: "state",
                      cell: (row) => <SupervisorState row={row} />,
                    },
                    { title: "behind", right: true, cell: (row) => short(row.aggregateLag) },
                  ]}
                />
              )}
            </Answer>
          </Card>
          <Card title="Busiest topics" more={<a href={link(["topics"])}>all topics</a>}>
            <Answer live={topics}>
              {(found) => (
                <Table
                  caption="busiest topics"
                  rows={found.page}
                  keyOf={(row) => row.topic_name}
                  none="There is no topic yet. The first event that is published creates one."
                  columns={[
                    {
                      title: "topic",
                      cell: (row) => <a href={link(["topics", row.topic_name])}>{row.topic_name}</a>,
                    },
                    {
                      title: "per second",
                      right: true,
                      cell: (row) => short(rates(`topic ${row.topic_name}`, row.message_count, found.at)),
                    },
                    { title: "waiting", right: true, cell: (row) => count(row.depth) },
                  ]}
                />
              )}
            </Answer>
          </Card>
          <Card title="Processes">
            <Answer live={status}>
              {(found) => (
                <Table
                  caption="processes"
                  rows={found.services.slice(0, WAITS_SHOWN)}
                  keyOf={(row) => `${row.service} ${row.instance}`}
                  none="No process is announced."
                  columns={[
                    { title: "process", cell: (row) => <span class="nowrap" title={row.address}>{row.service}</span> },
                    {
                      title: "state",
                      cell: (row) => (
                        <>
                          {row.ready ? (
                            <State tone="good">ready</State>
                          ) : row.starting ? (
                            <State tone="busy">starting</State>
                          ) : (
                            <State tone="bad">not ready</State>
                          )}
                          {!row.ready && <div class="quiet">{row.reasons[0]}</div>}
                        </>
                      ),
                    },
                    { title: "memory", right: true, cell: (row) => size(row.memoryBytes) },
                  ]}
                />
              )}
            </Answer>
          </Card>
          <HostCard every={RARELY_S} />
        </div>
      </div>
    </>
  );
}

function Health({ status, troubles }: { status: Live<ClusterStatus>; troubles: string[] }): JSX.Element {
  if (isRefused(status)) return <State tone="idle">Home</State>;
  if (status.error !== undefined) return <State tone="bad">{status.error.message}</State>;
  if (status.value === undefined) return <State tone="busy">waiting for the server …</State>;
  if (status.value.starting) return <State tone="busy">Penstock is starting</State>;
  if (!status.value.ready) return <State tone="bad">Not everything works</State>;
  return troubles.length > 0 ? (
    <State tone="warn">All processes are ready, but: {troubles.join(", ")}</State>
  ) : (
    <State tone="good">Everything works</State>
  );
}

interface Part {
  title: string;
  href: string;
  /** Texts, each with the page that has more about it. */
  lines: [string, string?][];
  tone: Tone;
}

interface Answers {
  topics: Live<TopicList>;
  flow: Live<FlowSummary>;
  supervisors: Live<SupervisorPage>;
  tasks: Live<TaskSearch>;
  datasources: Live<DatasourcePage>;
  queries: Live<RunningQuery[]>;
}

function Pipe({
  rates,
  topics,
  flow,
  supervisors,
  tasks,
  datasources,
  queries,
}: Answers & {
  rates: { messages: number | undefined; bytes: number | undefined; flow: number | undefined };
}): JSX.Element {
  const counts = tasks.value?.counts;
  const totals = flow.value?.totals;
  const sums = supervisors.value?.sums;
  const newest = Date.parse(datasources.value?.sums?.newestRow ?? "");
  const parts: Part[] = [
    {
      title: "Producers",
      href: link(["topics"], { order: "messages" }),
      lines: [[`${short(rates.messages)} messages/s`], [`${size(rates.bytes)}/s`]],
      tone: toneOf(topics),
    },
    {
      title: "Topics",
      href: link(["topics"]),
      lines: [
        [counted(topics.value?.topics, "topic")],
        [`${short(topics.value?.depth)} waiting`, link(["topics"], { order: "depth" })],
        [`${short(topics.value?.in_flight_count)} in flight`, link(["topics"], { order: "in_flight" })],
      ],
      tone: toneOf(topics),
    },
    {
      title: "Flow",
      href: link(["flow"]),
      lines: [
        [`${short(rates.flow)} FlowFiles/s`],
        [counted(totals?.components, "component")],
        [`${counted(flow.value?.repository.flowfiles, "FlowFile")} queued`],
        ...(totals?.full ? [[counted(totals.full, "full queue")] as [string]] : []),
      ],
      tone: toneOf(flow, (flow.value?.stuck.length ?? 0) > 0, (totals?.full ?? 0) > 0),
    },
    {
      title: "Supervisors",
      href: link(["supervisors"]),
      lines: [
        [counted(sums?.supervisors, "supervisor")],
        [`${counted(sums?.lag, "message")} behind`, link(["supervisors"], { order: "lag" })],
        ...(sums?.unhealthy ? [[`${short(sums.unhealthy)} unhealthy`, link(["supervisors"], { state: "unhealthy" })] as [string, string]] : []),
      ],
      tone: toneOf(supervisors, (sums?.unhealthy ?? 0) > 0),
    },
    {
      title: "Tasks",
      href: link(["tasks"]),
      lines: [
        [`${short(sums?.rowsPerSecond)} rows/s`, link(["supervisors"])],
        [`${short(counts?.running)} running`, link(["tasks"], { state: "RUNNING" })],
        [`${short(counts && counts.waiting + counts.pending)} waiting`],
      ],
      tone: toneOf(tasks),
    },
    {
      title: "Datasources",
      href: link(["datasources"]),
      lines: [
        [counted(datasources.value?.sums?.datasources, "datasource")],
        [size(datasources.value?.sums?.bytes)],
        ...(Number.isNaN(newest) ? [] : [[`newest row ${ago(newest)}`] as [string]]),
      ],
      tone: toneOf(datasources),
    },
    {
      title: "Queries",
      href: link(["sql"]),
      lines: [[`${short(queries.value?.length)} running`], ["ask a question"]],
      tone: toneOf(queries),
    },
  ];
  return (
    <ol class="pipe">
      {parts.map((part) => (
        <li key={part.title} class={part.tone}>
          <a href={part.href}>{part.title}</a>
          {part.lines.map(([text, href], index) => (
            <a key={index} class="number" href={href ?? part.href}>
              {text}
            </a>
          ))}
        </li>
      ))}
    </ol>
  );
}

function toneOf(live: Live<unknown>, isBad = false, isWarned = false): Tone {
  if (isRefused(live)) return "idle";
  if (live.error !== undefined || isBad) return "bad";
  return live.value === undefined ? "idle" : isWarned ? "warn" : "good";
}

function NewData({ found }: { found: DatasourcePage }): JSX.Element {
  const at = (text: string | null | undefined): number | null => (text ? Date.parse(text) : null);
  return (
    <Table
      caption="datasources"
      rows={found.datasources}
      keyOf={(row) => row.name}
      none={
        <>
          There is no datasource yet. A supervisor or a task makes one: <a href={link(["load"])}>load data</a>.
        </>
      }
      columns={[
        {
          title: "datasource",
          cell: (row) => <a href={link(["datasources", row.name])}>{row.name}</a>,
        },
        {
          title: "newest row",
          cell: (row) =>
            !row.newestRow ? (
              <span class="quiet">before {time(at(row.maxTime))}</span>
            ) : (
              time(at(row.newestRow))
            ),
        },
        { title: "published", cell: (row) => ago(at(row.publishedTime)) },
        { title: "segments", right: true, cell: (row) => count(row.segments), extra: true },
        { title: "size", right: true, cell: (row) => size(row.bytes) },
      ]}
    />
  );
}

interface Waiting {
  what: string;
  href?: string;
  why: string;
  since?: number;
}

function linkOf(owner: string): string | undefined {
  const [kind = "", ...name] = owner.split(" ");
  if (kind === "task") return link(["tasks", name.join(" ")]);
  if (kind === "supervisor") return link(["supervisors", name.join(" ")]);
  return undefined;
}

function Waits({
  status,
  flow,
  supervisors,
  tasks,
}: {
  status: Live<ClusterStatus>;
  flow: Live<FlowSummary>;
  supervisors: Live<SupervisorPage>;
  tasks: Live<TaskSearch>;
}): JSX.Element {
  const found = new Map<string, Waiting>();
  const add = (one: Waiting): void => {
    if (!found.has(one.what)) found.set(one.what, one);
  };
  for (const one of flow.value?.stuck ?? [])
    add({ what: `component ${one.name}`, href: link(["flow"], { part: one.id }), why: one.problem });
  for (const one of flow.value?.holdups ?? [])
    add({
      what: `FlowFiles before component ${one.name}`,
      href: link(["flow"], { part: one.id }),
      why:
        one.full === 1
          ? `component ${one.name}, because its queue ${one.queue} is full`
          : `component ${one.name}, because ${count(one.full)} of its queues are full, such as ${one.queue}`,
    });
  for (const one of supervisors.value?.supervisors ?? [])
    for (const wait of one.waits ?? [])
      add({
        what: `supervisor ${one.id}`,
        href: link(["supervisors", one.id]),
        why: `${wait.dependency}: ${wait.error}`,
        since: Date.parse(wait.since),
      });
  for (const wait of status.value?.waits ?? []) {
    const href = linkOf(wait.owner ?? "");
    add({
      what: wait.owner ?? wait.work,
      ...(href === undefined ? {} : { href }),
      why: `${wait.dependency}: ${wait.error}`,
      since: Date.parse(wait.since),
    });
  }
  for (const one of tasks.value?.tasks ?? [])
    if (one.statusCode === "RUNNING" && one.runnerStatusCode !== "RUNNING")
      add({
        what: `task ${one.id}`,
        href: link(["tasks", one.id]),
        why: one.runnerStatusCode === "PENDING" ? "a worker with a free slot" : "a lock",
        since: Date.parse(one.createdTime),
      });
  const rows = [...found.values()];
  const counts = tasks.value?.counts;
  const waiting = counts === undefined ? 0 : counts.waiting + counts.pending;
  return (
    <>
      <Table
        caption="what waits"
        rows={rows.slice(0, WAITS_SHOWN)}
        keyOf={(row) => row.what}
        none={isRefused(status) ? "Nothing that you may see waits." : "Nothing waits."}
        columns={[
          { title: "what", cell: (row) => (row.href ? <a href={row.href}>{row.what}</a> : row.what) },
          { title: "waits for", cell: (row) => row.why },
          { title: "since", cell: (row) => row.since && duration(serverNow() - row.since), right: true },
        ]}
      />
      {(rows.length > WAITS_SHOWN || waiting > TASKS) && (
        <p class="quiet">
          These are the first. In all, <a href={link(["tasks"])}>{counted(waiting, "task")}</a> and{" "}
          <a href={link(["supervisors"])}>{counted(supervisors.value?.sums?.waiting, "supervisor")}</a> wait.
        </p>
      )}
    </>
  );
}

interface Failure {
  what: string;
  href: string;
  why: string | null;
  at: number;
  isTask: boolean;
}

const counting = (value: number | undefined, one: string, many?: string): string[] =>
  value ? [counted(value, one, many)] : [];

interface NewLetters {
  topic: string;
  messages: number;
  at: number;
}

/** The dead letters of the last hour, by the topics that have the usual name of such topics. */
function useNewLetters(): NewLetters[] {
  const topics = useLive<TopicList>(
    withParams(`${BROKER}/stats/topics`, { search: LETTERS, order: "messages", limit: LETTER_TOPICS }),
    SELDOM_S,
  );
  const [found, setFound] = useState<NewLetters[]>([]);
  const rows = (topics.value?.page ?? []).filter((one) => one.topic_name.endsWith(LETTERS));
  const key = JSON.stringify(rows.map((one) => [one.topic_name, one.message_count]));
  const hour = Math.floor(serverNow() / LETTERS_MS);
  const newest = useNewest();
  useEffect(() => {
    void newest.ask(
      (stop) => Promise.all(rows.map((one) => newLetters(one, stop))),
      (all) => setFound(all.filter((one) => one.messages > 0)),
      () => undefined, // it is asked again; what the broker cannot do stands in the pipe
    );
  }, [key, hour]);
  return found;
}

async function newLetters(topic: TopicRow, stop: AbortSignal): Promise<NewLetters> {
  const timestamp = serverNow() - HOUR_MS;
  const letters = { topic: topic.topic_name, messages: 0, at: 0 };
  for (let partition = 0; partition < Math.min(topic.partitions, LETTER_PARTITIONS); partition += 1) {
    const params = { topic: topic.topic_name, partition, timestamp, count: 1, body_bytes: 1 };
    const { messages, latest } = await get<Peek>(withParams(`${BROKER}/peek`, params), stop);
    const [first] = messages;
    if (first === undefined) continue;
    letters.messages += latest - first.offset;
    letters.at = Math.max(letters.at, first.timestamp / 1e6);
  }
  return letters;
}

/** Failed tasks, and components of the flow with errors or warnings: what goes to `failure` is a warning. */
function failuresOf(tasks: TaskSearch | undefined, bulletins: Bulletins | undefined): Failure[] {
  const now = serverNow();
  const newest = new Map<string, Failure>();
  for (const one of bulletins?.bulletins ?? [])
    if (BAD_LEVELS.has(one.level.toUpperCase()) && Date.parse(one.time) > now - HOUR_MS)
      newest.set(one.component, {
        what: one.component === "" ? "the flow" : `component ${one.name || one.component}`,
        href: link(["flow"], { part: one.component }),
        why: one.message,
        at: Date.parse(one.time),
        isTask: false,
      });
  const failed = (tasks?.tasks ?? []).filter((row) => row.statusCode === "FAILED");
  return [
    ...newest.values(),
    ...failed.map((row) => ({
      what: `task ${row.id}`,
      href: link(["tasks", row.id]),
      why: row.errorMsg,
      at: Date.parse(row.createdTime) + Math.max(0, row.duration),
      isTask: true,
    })),
  ].sort((a, b) => b.at - a.at);
}

function Failed({
  tasks,
  failures,
  letters,
}: {
  tasks: Live<TaskSearch>;
  failures: Failure[];
  letters: NewLetters[];
}): JSX.Element {
  const failed = failures.filter((one) => one.isTask).length;
  const rows: Failure[] = [
    ...letters.map((one) => ({
      what: `dead letters in ${one.topic}`,
      href: link(["topics", one.topic]),
      why: exactly(one.messages, "new message"),
      at: one.at,
      isTask: false,
    })),
    ...failures,
  ];
  return (
    <Answer live={tasks}>
      {(found) => (
        <>
          {rows.length > 0 && (
            <dl class="figures">
              <Figure label="tasks" value={`${count(failed)}${found.hasMoreEnded ? " and more" : ""}`} />
              <Figure label="components of the flow" value={count(failures.length - failed)} />
              <Figure label="topics with dead letters" value={count(letters.length)} />
            </dl>
          )}
          <Table
            caption="what failed"
            rows={rows.slice(0, WAITS_SHOWN)}
            keyOf={(row) => `${row.href} ${row.at}`}
            none="Nothing failed."
            columns={[
              { title: "what", cell: (row) => <a href={row.href}>{row.what}</a> },
              { title: "reason", cell: (row) => row.why },
              { title: "when", cell: (row) => ago(row.at), right: true },
            ]}
          />
        </>
      )}
    </Answer>
  );
}
