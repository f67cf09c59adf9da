// The end of loading: the task or the supervisor, until the first query has rows.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { TaskReport, TaskWhy } from "./answers";
import { ApiError, call } from "./api";
import { Chart } from "./chart";
import { duration, exactly } from "./format";
import { useLive } from "./live";
import { chartStatement } from "./load_spec";
import { isKnown, quoted } from "./pages/datasources";
import { Log, Rows, Why } from "./pages/tasks";
import { useNewest } from "./newest";
import { link } from "./router";
import { Answer, Card, ErrorBox, State } from "./ui";

export interface Submitted {
  /** The task; empty for a supervisor. */
  task: string;
  supervisor: string;
  datasource: string;
  /** Length of the range of the times, in ms, as far as it is known. */
  spanMs: number;
  atMs: number;
}

const AGAIN_MS = 1_000;

export function Progress({ submitted }: { submitted: Submitted }): JSX.Element {
  const { task, supervisor, datasource } = submitted;
  const path = `/druid/indexer/v1/task/${encodeURIComponent(task)}`;
  const why = useLive<TaskWhy>(task === "" ? null : `${path}/why`);
  const report = useLive<TaskReport>(task === "" ? null : `${path}/reports`);
  const status = why.value?.status.statusCode;
  const [isLogOpen, setLogOpen] = useState(false);
  return (
    <>
      {task !== "" && (
        <Card title="Progress" wide more={<a href={link(["tasks", task])}>the task</a>}>
          <Answer live={why}>{(found) => <Why found={found} />}</Answer>
          {report.value && <Rows report={report.value} />}
          <details open={status === "FAILED"} onToggle={(event) => setLogOpen(event.currentTarget.open)}>
            <summary>Log</summary>
            {isLogOpen && <Log path={`${path}/log`} />}
          </details>
        </Card>
      )}
      {supervisor !== "" && (
        <Card title="Progress" wide more={<a href={link(["supervisors", supervisor])}>the supervisor</a>}>
          <p>The supervisor {supervisor} reads the topic. Its first task starts within seconds.</p>
        </Card>
      )}
      {(supervisor !== "" || status === "SUCCESS") && (
        <FirstQuery key={datasource} submitted={submitted} mayWait={supervisor !== ""} />
      )}
    </>
  );
}

interface TimeRow {
  time: string;
  rows: number;
}

/** The rows of the chart's statement; none while there is no table, which appears with its first rows. */
async function rowsByTime(datasource: string, query: string, signal: AbortSignal): Promise<TimeRow[]> {
  if (!(await isKnown(datasource, signal))) return [];
  return call<TimeRow[]>("POST", "/druid/v2/sql", { query }, signal);
}

interface Found {
  times: number[];
  rows: number[];
  tookMs: number;
  /** Whether the rows were there before the supervisor began. */
  isOlder: boolean;
}

/** The first query, tried until it has rows, and its chart. */
function FirstQuery({ submitted, mayWait }: { submitted: Submitted; mayWait: boolean }): JSX.Element {
  const { datasource, spanMs, atMs } = submitted;
  const statement = chartStatement(quoted(datasource), spanMs);
  const [found, setFound] = useState<Found>();
  const [error, setError] = useState<Error>();
  const newest = useNewest();
  useEffect(() => {
    let timer: number | undefined;
    let isFirst = true;
    const again = (): void => {
      isFirst = false;
      timer = window.setTimeout(ask, AGAIN_MS);
    };
    function ask(): void {
      void newest.ask(
        (signal) => rowsByTime(datasource, statement, signal),
        (rows) => {
          setError(undefined);
          if (rows.length === 0) return again();
          setFound({
            times: rows.map((one) => Date.parse(one.time)),
            rows: rows.map((one) => one.rows),
            tookMs: Date.now() - atMs,
            isOlder: mayWait && isFirst,
          });
        },
        (failure) => {
          // A server may be restarting.
          if (!(mayWait || (failure instanceof ApiError && failure.status >= 500))) setError(failure);
          again();
        },
      );
    }
    ask();
    return () => {
      newest.end();
      window.clearTimeout(timer);
    };
  }, [statement]);
  const sum = found?.rows.reduce((total, one) => total + one, 0);
  return (
    <Card
      title="The first query"
      wide
      more={<a href={link(["sql"], { query: statement })}>open it in SQL</a>}
    >
      {error && <ErrorBox error={error} />}
      {found === undefined ? (
        <p role="status">
          <State tone="busy">waiting for the first rows …</State>
        </p>
      ) : (
        <>
          <p role="status">
            {found.isOlder ? (
              <>
                {datasource} has {exactly(sum, "row")} from before. Those of the topic are added as the tasks read them.
              </>
            ) : (
              <>
                <State tone="good">loaded</State>: {exactly(sum, "row")} of {datasource} can be queried,{" "}
                {duration(found.tookMs)} after they were submitted.
              </>
            )}
          </p>
          {found.times.length > 1 ? (
            <Chart
              label={`rows of ${datasource} over time`}
              x={found.times}
              isTime
              series={[{ label: "rows", values: found.rows }]}
            />
          ) : (
            <p class="quiet">All rows have the same time, so that a chart over time would have one point.</p>
          )}
        </>
      )}
    </Card>
  );
}
