// Datasources: how much data each has, of which time and how fresh, its columns, segments and rules.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { Action } from "../actions";
import type { ColumnRow, DatasourcePage, DatasourceSums, ListedDatasource, StateSums } from "../answers";
import { call, check, get, serverNow, withParams } from "../api";
import { keepCounted, keptOf, type Counted } from "../counted_values";
import { ago, count, exactly, size, time } from "../format";
import { useLive, useLiveKept } from "../live";
import { useAsked } from "../newest";
import { link, place, setParams } from "../router";
import { SegmentTimelineCard } from "../segment_timeline";
import { Answer, Card, ErrorBox, Figure, Pager, Search, Table } from "../ui";
import { Retention } from "./retention";
import { TasksOf } from "./tasks";

const OWN = "/penstock/v1/datasources";
const INDEXER = "/druid/indexer/v1";
const SHOWN = 100;
const EVERY_S = 5;
const COUNTED_MAX = 50;
const REST_MS = 300;

export function Datasources({ parts }: { parts: string[] }): JSX.Element {
  const [name] = parts;
  return name === undefined ? <DatasourcesList /> : <OneDatasource key={name} name={name} />;
}

function DatasourcesList(): JSX.Element {
  const params = place.value.params;
  const search = params.get("search") ?? "";
  const skip = Number(params.get("skip") ?? 0);
  const live = useLiveKept<DatasourcePage>(withParams(OWN, { search, skip, limit: SHOWN }), EVERY_S);
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <h1>Datasources</h1>
      <div class="bar">
        <Search
          label="name contains"
          value={search}
          onChange={(text) => setParams({ search: text, skip: undefined })}
        />
        <a href={link(["lookups"])}>lookups</a>
      </div>
      <Answer live={live}>
        {(found) => (
          <>
            <Table
              caption="datasources"
              rows={found.datasources}
              keyOf={(row) => row.name}
              none={
                search === "" ? (
                  <>
                    There is no datasource yet. A supervisor or a task makes one:{" "}
                    <a href={link(["load"])}>load data</a>.
                  </>
                ) : (
                  "No datasource has this in its name."
                )
              }
              columns={[
                { title: "datasource", cell: (row) => <a href={link(["datasources", row.name])}>{row.name}</a> },
                { title: "rows", cell: (row) => (row.isLimited ? "a part" : count(rowsOf(row))), right: true },
                { title: "size", cell: (row) => size(row.bytes), right: true },
                { title: "segments", cell: (row) => count(row.segments), right: true, extra: true },
                { title: "data from", cell: (row) => time(ms(row.minTime)), extra: true },
                { title: "data until", cell: (row) => time(ms(row.maxTime)), extra: true },
                { title: "published", cell: (row) => ago(ms(row.publishedTime)), right: true },
                { title: "rows in SQL", cell: (row) => <a href={sqlOf(row.name)}>query</a> },
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
      <details class="below" onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>retention rules of all datasources</summary>
        {isOpen && <Retention name="_default" onChange={() => undefined} />}
      </details>
    </>
  );
}

const ms = (text: string | null | undefined): number | undefined =>
  text === null || text === undefined ? undefined : Date.parse(text);

const rowsOf = (found: ListedDatasource): number => (found.rows ?? 0) + (found.runningRows ?? 0);

function sqlOf(name: string): string {
  return link(["sql"], { query: `SELECT * FROM ${quoted(name)} ORDER BY __time DESC LIMIT 100` });
}

/** Whether a datasource of this name has rows, or had; a search that finds too many does not show it. */
export async function isKnown(name: string, signal: AbortSignal): Promise<boolean> {
  const { found, datasources } = await get<DatasourcePage>(withParams(OWN, { search: name, limit: SHOWN }), signal);
  return found > SHOWN || datasources.some((one) => one.name === name);
}

/** A name for SQL, quoted as Spark quotes it. */
export function quoted(name: string): string {
  return `\`${name.replaceAll("`", "``")}\``;
}

function OneDatasource({ name }: { name: string }): JSX.Element {
  const live = useLive<ListedDatasource>(`${OWN}/${encodeURIComponent(name)}`, EVERY_S);
  const [changes, setChanges] = useState(0);
  const changed = (): void => setChanges((before) => before + 1);
  const found = live.value;
  // Rules may exist before there is data.
  const isWhole = found === undefined ? live.error?.status === 404 : !found.isLimited;
  return (
    <>
      <h1>
        <a href={link(["datasources"])}>Datasources</a> / {name}
      </h1>
      <div class="grid">
        <Card title="Data" wide more={<a href={sqlOf(name)}>query it</a>}>
          <Answer live={live}>{(one) => <Figures found={one} />}</Answer>
        </Card>
        {found !== undefined && isWhole && (
          <Card title="Segments over time" wide>
            <SegmentTimelineCard name={name} changes={changes} onChange={changed} />
          </Card>
        )}
        {isWhole && (
          <Card title="Change segments" wide>
            <ChangeSegments name={name} found={found} changes={changes} onChange={changed} />
          </Card>
        )}
        <Card title="Columns" wide>
          <Columns name={name} listed={found} />
        </Card>
        {isWhole && (
          <Card title="Retention rules" wide>
            <Retention name={name} onChange={changed} />
          </Card>
        )}
        <Card title="Tasks" wide>
          <TasksOf datasource={name} />
        </Card>
      </div>
    </>
  );
}

function Figures({ found }: { found: ListedDatasource }): JSX.Element {
  if (found.isLimited)
    return (
      <p>
        You see a part of its rows, with SQL. So sums, segments and files are not shown.
      </p>
    );
  return (
    <dl class="figures">
      <Figure label="rows" value={count(rowsOf(found))} />
      <Figure label="of these in running tasks" value={count(found.runningRows)} />
      <Figure label="size" value={size(found.bytes)} />
      <Figure label="segments" value={count(found.segments)} />
      <Figure label="from" value={time(ms(found.minTime))} />
      <Figure label="until" value={time(ms(found.maxTime))} />
      <Figure label="newest publish" value={ago(ms(found.publishedTime))} />
    </dl>
  );
}

/** Changes with each publish, and with each segment that is marked or deleted. */
function stateOf(found: ListedDatasource | undefined): string {
  if (found === undefined || found.isLimited) return "";
  return [found.publishedTime, found.segments, found.bytes, found.rows].join(" ");
}

/** Columns with their types; the values are counted when asked for, because that reads all rows. */
function Columns({ name, listed }: { name: string; listed: ListedDatasource | undefined }): JSX.Element {
  const [found, setFound] = useState(() => keptOf(name));
  const state = stateOf(listed);
  // SQL knows no table whose segments are all unused.
  const isTable = listed !== undefined && (listed.isLimited || (listed.segments ?? 0) + (listed.runningRows ?? 0) > 0);
  const { value: columns, error } = useAsked<ColumnRow[]>(isTable ? name : undefined, (signal) =>
    call("POST", "/druid/v2/sql", { query: `DESCRIBE ${quoted(name)}` }, signal),
  );
  const counted = (columns ?? [])
    .filter((one) => !/^(map|array|struct|variant)/.test(one.data_type))
    .slice(0, COUNTED_MAX);

  async function measure(): Promise<string> {
    const parts = counted.map((one, at) => `approx_count_distinct(${quoted(one.col_name)}) AS c${at}`);
    const query = `SELECT max(__time) AS newest, count(*) AS n, ${parts.join(", ")} FROM ${quoted(name)}`;
    const [row] = await call<Record<string, number | string | null>[]>("POST", "/druid/v2/sql", { query });
    if (row === undefined) throw new Error("the answer has no row");
    const made: Counted = {
      newest: row["newest"] === null ? null : String(row["newest"]),
      rows: Number(row["n"]),
      distinct: Object.fromEntries(counted.map((one, at) => [one.col_name, Number(row[`c${at}`])])),
      at: serverNow(),
      state,
    };
    keepCounted(name, made);
    setFound(made);
    return "";
  }

  return (
    <>
      {error && <ErrorBox error={error} />}
      <div class="bar">
        <Action
          label="count values with SQL"
          about={`of ${name}`}
          disabled={columns === undefined || columns.length === 0}
          hint="It reads all rows. The numbers of distinct values are estimates."
          run={measure}
        />
      </div>
      {found && (
        <>
          <dl class="figures">
            <Figure label="rows" value={count(found.rows)} />
            <Figure label="newest event" value={time(ms(found.newest))} />
            <Figure label="counted" value={ago(found.at)} />
          </dl>
          {found.state !== "" && state !== "" && (
            <p class="quiet">
              {found.state === state
                ? "The segments are the same since."
                : "The segments have changed since: count again for the present values."}
            </p>
          )}
        </>
      )}
      <Table
        caption="columns"
        rows={columns ?? []}
        keyOf={(row) => row.col_name}
        none={error ? "" : listed === undefined || isTable ? "waiting for the server …" : "SQL sees no rows of it."}
        columns={[
          { title: "column", cell: (row) => row.col_name },
          { title: "type", cell: (row) => row.data_type },
          { title: "distinct values, about", cell: (row) => count(found?.distinct[row.col_name]), right: true },
        ]}
      />
    </>
  );
}

/** A time without the parts that are zero. */
const short = (text: string): string => text.replace(/T00:00:00\.000Z$/, "").replace(/\.000Z$/, "Z");

const sumsText = (sums: StateSums): string =>
  `${exactly(sums.segments, "segment")} with ${exactly(sums.rows, "row")}, ${size(sums.bytes)}`;

/** Marks the segments of an interval as unused or used, or compacts them. */
function ChangeSegments({
  name,
  found,
  changes,
  onChange,
}: {
  name: string;
  found: ListedDatasource | undefined;
  changes: number;
  onChange: () => void;
}): JSX.Element {
  const zoomed = place.value.params.get("interval");
  const whole = found?.minTime && found.maxTime ? `${short(found.minTime)}/${short(found.maxTime)}` : "";
  const [written, setWritten] = useState<string>();
  const interval = written ?? zoomed?.split("/").map(short).join("/") ?? whole;
  const { value: sums, error } = useAsked<DatasourceSums>(
    interval === "" ? undefined : `${name} ${interval} ${changes}`,
    (signal) => check("GET", `${OWN}/${encodeURIComponent(name)}/sums`, { interval }, signal),
    REST_MS,
  );
  const hidden = sums === undefined ? 0 : sums.used.segments - sums.visible.segments;
  const [task, setTask] = useState<string>();
  const mark = async (how: string): Promise<string> => {
    const path = `${INDEXER}/datasources/${encodeURIComponent(name)}/${how}`;
    const done = await call<{ numChangedSegments: number }>("POST", path, { interval });
    onChange();
    return `${exactly(done.numChangedSegments, "segment")} changed`;
  };
  return (
    <>
      <div class="bar">
        <label>
          interval{" "}
          <input
            class="interval"
            value={interval}
            placeholder="2026-01-01/2026-02-01"
            onInput={(event) => setWritten(event.currentTarget.value)}
          />
        </label>
        {written !== undefined && (
          <button type="button" onClick={() => setWritten(undefined)}>
            as in the picture
          </button>
        )}
      </div>
      {error && <ErrorBox error={error} />}
      {sums && (
        <p>
          Within it: {sumsText(sums.visible)} in use; {sumsText(sums.unused)} unused.
          {hidden > 0 && ` ${exactly(hidden, "more used segment")} ${hidden === 1 ? "is" : "are"} hidden or incomplete.`}
          {sums.overlapping
            ? ` ${exactly(sums.overlapping, "segment")} ${sums.overlapping === 1 ? "overlaps" : "overlap"} the interval only in part, and ${sums.overlapping === 1 ? "does" : "do"} not count: nothing here changes ${sums.overlapping === 1 ? "it" : "them"}.`
            : ""}
        </p>
      )}
      <div class="bar">
        <Action
          label="mark unused"
          about={`the segments of ${name} in the interval`}
          disabled={sums === undefined || sums.used.segments === 0}
          run={() => mark("markUnused")}
          confirm={{
            question: `Mark segments of ${name} as unused?`,
            lost: () =>
              sums && (
                <>
                  <p>{interval}</p>
                  <p>
                    Queries no longer see {sumsText(sums.visible)}. They can be used again until a <code>kill</code> task
                    deletes them.
                  </p>
                </>
              ),
          }}
        />
        <Action
          label="use again"
          about={`the unused segments of ${name} in the interval`}
          disabled={sums === undefined || sums.unused.segments === 0}
          hint="Segments that newer versions hide stay unused."
          run={() => mark("markUsed")}
        />
        <Action
          label="compact"
          about={`${name} in the interval`}
          disabled={sums === undefined || sums.used.segments === 0}
          hint="A task rewrites the segments in their present granularity. Queries see the old ones until it publishes."
          run={async () => {
            const made = await call<{ task: string }>("POST", `${INDEXER}/task`, {
              type: "compact",
              dataSource: name,
              ioConfig: { type: "compact", inputSpec: { type: "interval", interval } },
            });
            setTask(made.task);
            return "submitted";
          }}
        />
      </div>
      {task !== undefined && (
        <p>
          Task <a href={link(["tasks", task])}>{task}</a>
        </p>
      )}
    </>
  );
}
