// One component of a flow: its numbers, why it cannot run, its definition, state and errors.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { Action } from "../actions";
import type { Bulletins, FlowComponent, FlowComponentDetail, FlowProperty } from "../answers";
import { call, get, withParams } from "../api";
import { count, counted, duration, size, time } from "../format";
import { useLive } from "../live";
import { useNewest } from "../newest";
import { Card, ErrorBox, Figure, State, Table } from "../ui";
import { RunActions, runsOf } from "./flow_actions";
import { linkTo, TONES } from "./flow_view";

const BULLETINS = 20;
const VALUE_CHARACTERS = 2_000;

export function ComponentCard({
  id,
  known,
  isCause,
}: {
  id: string;
  /** From the graph: shown until the whole component has come. */
  known: FlowComponent | undefined;
  isCause: boolean;
}): JSX.Element {
  const live = useLive<FlowComponentDetail>(withParams("/flow/component", { target: id }));
  const bulletins = useLive<Bulletins>(withParams("/flow/bulletins", { component: id, limit: BULLETINS }));
  const detail = live.value;
  const component = detail ?? known;
  if (component === undefined) {
    return (
      <Card title="Component" wide>
        {live.error ? <ErrorBox error={live.error} /> : <p class="quiet">waiting for the server …</p>}
      </Card>
    );
  }
  const penalized = detail?.inputs.reduce((sum, one) => sum + one.penalized, 0);
  return (
    <Card title={component.name} wide>
      {live.error && <ErrorBox error={live.error} />}
      <dl class="figures">
        <Figure label="kind" value={component.type || component.kind} />
        <Figure label="state" value={<State tone={TONES[component.state] ?? "idle"}>{component.state}</State>} />
        {component.waitsFor && <Figure label="waits for" value={component.waitsFor} />}
        {component.nextFiring && <Figure label="next run" value={time(Date.parse(component.nextFiring))} />}
        <Figure label="runs" value={count(component.runs)} />
        <Figure label="failed runs" value={count(component.failures)} />
        <Figure label="time of runs" value={duration(component.runMs)} />
        <Figure label="in" value={`${count(component.in)} · ${size(component.inBytes)}`} />
        <Figure label="out" value={`${count(component.out)} · ${size(component.outBytes)}`} />
        <Figure label="running now" value={count(component.activeTasks)} />
        <Figure label="penalized" value={count(penalized)} />
        {detail && detail.longestActiveMs > 0 && (
          <Figure label="runs since" value={duration(detail.longestActiveMs)} />
        )}
        {detail && detail.terminatedTasks > 0 && (
          <Figure label="abandoned threads" value={count(detail.terminatedTasks)} />
        )}
      </dl>
      {detail && (
        <div class="bar">
          <RunActions target={id} about={component.name} runs={runsOf(detail.state, detail.desired)} />
        </div>
      )}
      {isCause && (
        <p>
          <State tone="bad">It holds others up</State>: the queue before it is full, and nothing stops it.
        </p>
      )}
      {component.problems.map((problem) => (
        <ErrorBox key={problem} error={new Error(`It cannot run: ${problem}`)} />
      ))}
      {detail?.waits.map((wait) => (
        <p key={wait.dependency}>
          <State tone="warn">It waits for {wait.dependency}</State> since {time(Date.parse(wait.since))}, after{" "}
          {counted(wait.tries, "try", "tries")}: {wait.error}
        </p>
      ))}
      {detail && <Queues detail={detail} />}
      <h3>Warnings and errors</h3>
      <Table
        caption={`warnings and errors of ${component.name}`}
        rows={(bulletins.value?.bulletins ?? []).toReversed()}
        keyOf={(one) => String(one.number)}
        none="There is none."
        columns={[
          { title: "when", cell: (one) => time(Date.parse(one.time)) },
          { title: "level", cell: (one) => one.level.toLowerCase(), extra: true },
          { title: "text", cell: (one) => one.message },
        ]}
      />
      {detail?.definition && <Definition detail={detail} definition={detail.definition} />}
      {detail && <StateOf key={id} detail={detail} />}
    </Card>
  );
}

function Queues({ detail }: { detail: FlowComponentDetail }): JSX.Element {
  const rows = [
    ...detail.inputs.map((one) => ({ way: "in", one })),
    ...detail.outputs.map((one) => ({ way: "out", one })),
  ];
  return (
    <Table
      caption={`queues of ${detail.name}`}
      rows={rows}
      keyOf={({ way, one }) => `${way} ${one.id}`}
      none="It has no connections."
      columns={[
        { title: "queue", cell: ({ one }) => <a href={linkTo({ queue: one.id })}>{one.name}</a> },
        { title: "way", cell: ({ way }) => way },
        {
          title: "waiting",
          cell: ({ one }) => (one.full ? <State tone="bad">{count(one.queued)}, full</State> : count(one.queued)),
          right: true,
        },
        { title: "penalized", cell: ({ one }) => count(one.penalized), right: true, extra: true },
        { title: "size", cell: ({ one }) => size(one.queuedBytes), right: true, extra: true },
      ]}
    />
  );
}

function Definition({
  detail,
  definition,
}: {
  detail: FlowComponentDetail;
  definition: NonNullable<FlowComponentDetail["definition"]>;
}): JSX.Element {
  const retries = Object.entries(definition.retry).map(([name, times]) => `${name} ${times}×`);
  return (
    <>
      <h3>Definition</h3>
      {definition.comments && <p>{definition.comments}</p>}
      <dl class="figures">
        <Figure
          label="schedule"
          value={`${definition.schedule}${definition.zone === "UTC" ? "" : ` (${definition.zone})`}`}
        />
        <Figure label="threads at most" value={count(definition.concurrentTasks)} />
        <Figure label="penalty" value={definition.penaltyDuration} />
        <Figure label="yield" value={definition.yieldDuration} />
        {definition.autoTerminated.length > 0 && (
          <Figure label="ends at" value={definition.autoTerminated.join(", ")} />
        )}
        {retries.length > 0 && <Figure label="retries" value={retries.join(", ")} />}
      </dl>
      {detail.nextFirings.length > 0 && (
        <p>
          {detail.state === "stopped" || detail.state === "disabled" ? "It would fire at " : "It fires at "}
          {detail.nextFirings.map((one) => time(Date.parse(one))).join(", ")} (UTC)
          {definition.catchUp ? ", and once for all times that it missed." : "."}
        </p>
      )}
      <Table
        caption={`properties of ${detail.name}`}
        rows={definition.properties}
        keyOf={(one) => one.name}
        none="It has no properties."
        columns={[
          { title: "property", cell: (one) => one.name },
          { title: "value", cell: (one) => <Value property={one} /> },
          { title: "about", cell: (one) => one.about, extra: true },
        ]}
      />
    </>
  );
}

function Value({ property }: { property: FlowProperty }): JSX.Element {
  const { value } = property;
  if (value === null) {
    return <span class="quiet">{property.default === null ? "not set" : `${property.default} (default)`}</span>;
  }
  const text = Array.isArray(value) ? value.join("\n") : value;
  return (
    <>
      <code class="pre">{text.slice(0, VALUE_CHARACTERS)}</code>
      {text.length > VALUE_CHARACTERS && <span class="quiet"> … {count(text.length)} characters</span>}
      {property.isSensitive && <span class="quiet"> (secret)</span>}
    </>
  );
}

function StateOf({ detail }: { detail: FlowComponentDetail }): JSX.Element {
  const [entries, setEntries] = useState<Record<string, string>>();
  const [error, setError] = useState<Error>();
  const path = withParams("/flow/state", { target: detail.id });
  const newest = useNewest();
  const isStopped = detail.state === "stopped" || detail.state === "disabled";
  const read = (): Promise<void> =>
    newest.ask(
      (signal) => get<{ entries: Record<string, string> }>(path, signal),
      (found) => {
        setEntries(found.entries);
        setError(undefined);
      },
      setError,
    );
  return (
    <>
      <h3>State</h3>
      <div class="bar">
        <span>
          {detail.stateEntries === 0
            ? "It has stored nothing."
            : `${counted(detail.stateEntries, "entry", "entries")}, kept over restarts`}
        </span>
        {(detail.stateEntries > 0 || entries) && (
          <button type="button" onClick={() => void read()}>
            show the state
          </button>
        )}
        {detail.stateEntries > 0 && (
          <Action
            label="clear"
            about={`the state of ${detail.name}`}
            disabled={!isStopped}
            hint={isStopped ? "deletes all entries" : "stop the component first: it would write them again"}
            confirm={{
              question: `Clear the state of ${detail.name}?`,
              lost: () => (
                <p>
                  Deletes {counted(detail.stateEntries, "entry", "entries")}. They are what it remembers from run to run, such as
                  the place up to which it has read a file: it may read or send everything again.
                </p>
              ),
            }}
            run={async () => {
              const { cleared } = await call<{ cleared: number }>("DELETE", path);
              newest.end();
              setEntries(undefined);
              return `${counted(cleared, "entry", "entries")} cleared`;
            }}
          />
        )}
      </div>
      {error && <ErrorBox error={error} />}
      {entries && (
        <Table
          caption={`state of ${detail.name}`}
          rows={Object.entries(entries)}
          keyOf={([name]) => name}
          none="It has stored nothing."
          columns={[
            { title: "entry", cell: ([name]) => name },
            { title: "value", cell: ([, value]) => <code class="pre">{value.slice(0, VALUE_CHARACTERS)}</code> },
          ]}
        />
      )}
    </>
  );
}
