// Workers: how many slots each has, and which tasks use them.
import type { JSX } from "preact";

import type { WorkerRow } from "../answers";
import { ago, count, time } from "../format";
import { useLive } from "../live";
import { link } from "../router";
import { Answer, Card, Figure, State, Table } from "../ui";

export const TASKS_SHOWN = 8;

export function Workers(): JSX.Element {
  const live = useLive<WorkerRow[]>("/druid/indexer/v1/workers");
  return (
    <Card title="Workers and slots" wide>
      <Answer live={live}>{(found) => <Listed workers={found} />}</Answer>
    </Card>
  );
}

function Listed({ workers }: { workers: WorkerRow[] }): JSX.Element {
  const capacity = workers.reduce((sum, one) => sum + one.worker.capacity, 0);
  const used = workers.reduce((sum, one) => sum + one.currCapacityUsed, 0);
  return (
    <>
      <dl class="figures">
        <Figure label="slots" value={count(capacity)} />
        <Figure label="used" value={count(used)} />
        <Figure label="free" value={count(Math.max(0, capacity - used))} />
      </dl>
      <Table
        caption="workers"
        rows={workers}
        keyOf={(one) => one.worker.host}
        none="No worker is known, so no task can run: start one, or read its log."
        columns={[
          { title: "worker", cell: (one) => one.worker.host },
          { title: "state", cell: (one) => <WorkerState row={one} /> },
          {
            title: "slots",
            right: true,
            cell: (one) => `${count(one.currCapacityUsed)} of ${count(one.worker.capacity)}`,
          },
          { title: "running tasks", cell: (one) => <TaskLinks ids={one.runningTasks} /> },
          {
            title: "last task ended",
            extra: true,
            right: true,
            cell: (one) => (one.lastCompletedTaskTime ? ago(Date.parse(one.lastCompletedTaskTime)) : "–"),
          },
        ]}
      />
    </>
  );
}

function WorkerState({ row }: { row: WorkerRow }): JSX.Element {
  if (row.blacklistedUntil !== null)
    return <State tone="bad">blacklisted until {time(Date.parse(row.blacklistedUntil))}</State>;
  if (row.worker.disabled) return <State tone="warn">disabled</State>;
  if (row.currCapacityUsed >= row.worker.capacity) return <State tone="busy">full</State>;
  return <State tone="good">takes tasks</State>;
}

/** Links to the first tasks of a list, and the number of the others. */
export function TaskLinks({ ids, total = ids.length }: { ids: string[]; total?: number }): JSX.Element {
  if (ids.length === 0) return <span class="quiet">none</span>;
  const shown = ids.slice(0, TASKS_SHOWN);
  return (
    <>
      {shown.map((id, index) => (
        <span key={id}>
          {index > 0 && ", "}
          <a href={link(["tasks", id])}>{id}</a>
        </span>
      ))}
      {total > shown.length && ` and ${count(total - shown.length)} more`}
    </>
  );
}
