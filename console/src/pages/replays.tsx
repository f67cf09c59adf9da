// Replays of many FlowFiles: chosen by their events, counted, confirmed, and replayed step by step.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { Action } from "../actions";
import type { ReplayStep } from "../answers";
import { ApiError, call, follow, stopped, withParams, type Params } from "../api";
import { count, exactly, iso, time } from "../format";
import { useNewest } from "../newest";
import { link, place } from "../router";
import { Card, ErrorBox, Table } from "../ui";
import { Ways } from "./trace";

const PATH = "/penstock/v1/flow/replays";
/** Most FlowFiles of one request of a user. */
const CHOSEN_MAX = 10_000;
const EXAMPLES_MAX = 20;
const KINDS = [
  ...["CREATE", "RECEIVE", "FORK", "JOIN", "CLONE", "ROUTE", "ATTRIBUTES_MODIFIED", "CONTENT_MODIFIED"],
  ...["SEND", "DROP", "EXPIRE", "DOWNLOAD", "REPLAY"],
];
const ANY = "any";
const FIELDS = ["component", "event", "from", "to", "attribute", "value"] as const;
const REASONS: Record<string, string> = {
  already: "were replayed before",
  queued: "are still in a queue",
  content: "have content that is damaged or no longer kept",
  connection: "were in a connection that is no longer in the flow",
  full: "were in a queue that is full now",
  unclear: "have too many events to see whether they match",
  never_queued: "were put into a queue before the record begins",
};

interface Sum extends ReplayStep {
  /** Whether the bound ended it before all events were read. */
  isCut: boolean;
}

/** `#/replays?component=Parse&event=DROP` chooses FlowFiles that Parse dropped. */
export function Replays(): JSX.Element {
  const { params } = place.value;
  const filter = Object.fromEntries(
    FIELDS.map((name) => [name, params.get(name) ?? undefined]).filter(([, value]) => value !== undefined),
  ) as Record<string, string>;
  const isAsked = params.has("event");
  return (
    <>
      <h1>Replay many FlowFiles</h1>
      <Ways current="replays" />
      <Card title="Choose them by their events">
        <Filter key={location.hash} filter={filter} />
      </Card>
      {isAsked && <Chosen key={location.hash} filter={filter} />}
    </>
  );
}

function Filter({ filter }: { filter: Record<string, string> }): JSX.Element {
  const submit = (form: HTMLFormElement): void => {
    const given = new FormData(form);
    const of = (name: string): string => String(given.get(name) ?? "").trim();
    const at = (name: string): string => (of(name) === "" ? "" : iso(Date.parse(`${of(name)}Z`)));
    const found = { component: of("component"), attribute: of("attribute"), value: of("value") };
    const times = { from: at("from"), to: at("to") };
    const kept = Object.entries({ ...found, ...times }).filter(([, value]) => value !== "");
    location.hash = link(["replays"], { event: of("event"), ...Object.fromEntries(kept) });
  };
  const local = (text: string | undefined): string => (text ?? "").slice(0, 19);
  return (
    <form
      class="bar"
      onSubmit={(event) => {
        event.preventDefault();
        submit(event.currentTarget);
      }}
    >
      <label>
        processor <input name="component" size={16} placeholder="any" defaultValue={filter["component"]} />
      </label>
      <label>
        event{" "}
        <select name="event">
          <option selected={filter["event"] === ANY}>{ANY}</option>
          {KINDS.map((kind) => (
            <option key={kind} selected={kind === (filter["event"] ?? "DROP")}>
              {kind}
            </option>
          ))}
        </select>
      </label>
      <label>
        from (UTC) <input name="from" type="datetime-local" step={1} defaultValue={local(filter["from"])} />
      </label>
      <label>
        to (UTC) <input name="to" type="datetime-local" step={1} defaultValue={local(filter["to"])} />
      </label>
      <label>
        attribute <input name="attribute" size={12} placeholder="any" defaultValue={filter["attribute"]} />
      </label>
      <label>
        with value <input name="value" size={12} defaultValue={filter["value"]} />
      </label>
      <button type="submit">count them</button>
    </form>
  );
}

/** Runs all steps of a selection and reports the sum after each. */
async function runAll(
  method: "GET" | "POST",
  filter: Params,
  start: { until: number } | undefined,
  onStep: (sum: Sum) => void,
  signal?: AbortSignal,
): Promise<Sum> {
  const sum: Sum = { outcomes: {}, examples: [], next: null, until: start?.until ?? 0, time: null, isCut: false };
  for (;;) {
    const until = sum.until === 0 ? undefined : sum.until;
    const event = filter["event"] === ANY ? undefined : filter["event"];
    const path = withParams(PATH, { ...filter, event, next: sum.next ?? undefined, until });
    const step = await (method === "GET" ? follow<ReplayStep>(path, signal) : call<ReplayStep>(method, path));
    for (const [outcome, number] of Object.entries(step.outcomes))
      sum.outcomes[outcome] = (sum.outcomes[outcome] ?? 0) + number;
    sum.examples = [...sum.examples, ...step.examples].slice(0, EXAMPLES_MAX);
    sum.next = step.next;
    sum.until = step.until;
    sum.time = step.time ?? sum.time;
    sum.isCut = step.next !== null && chosenIn(sum) >= CHOSEN_MAX;
    onStep({ ...sum, outcomes: { ...sum.outcomes } });
    if (step.next === null || sum.isCut) return sum;
  }
}

const chosenIn = (sum: ReplayStep): number =>
  Object.values(sum.outcomes).reduce((total, number) => total + number, 0);

function Chosen({ filter }: { filter: Record<string, string> }): JSX.Element {
  const [sum, setSum] = useState<Sum>();
  const [isCounted, setCounted] = useState(false);
  const [done, setDone] = useState<Sum>();
  const [error, setError] = useState<Error>();
  const newest = useNewest();
  useEffect(() => {
    void newest.ask(
      (signal) => runAll("GET", filter, undefined, setSum, signal),
      () => setCounted(true),
      setError,
    );
  }, []);
  if (error) return <ErrorBox error={error} />;
  if (sum === undefined) return <p class="quiet">counting …</p>;
  const replayable = sum.outcomes["replayed"] ?? 0;
  const run = async (): Promise<string> => {
    // A repeated attempt goes through the same FlowFiles, and replays those that are left.
    let soFar = "";
    try {
      await runAll("POST", filter, sum, (step) => {
        soFar = `${exactly(step.outcomes["replayed"] ?? 0, "FlowFile")} replayed`;
        setDone(step);
      });
      return soFar;
    } catch (error) {
      setDone(undefined); // it does not go on
      throw error instanceof ApiError ? stopped(error, soFar, "Replay") : error;
    }
  };
  return (
    <Card title="What is chosen" wide>
      <p role="status">
        {!isCounted && `counting … up to ${time(sum.time)}: `}
        {exactly(chosenIn(sum), "FlowFile")} chosen, {count(replayable)} of them can be replayed
        {sum.isCut && `. These are the first: choose a shorter time to see the others`}
      </p>
      <Outcomes sum={sum} title="cannot be replayed" />
      {isCounted && replayable > 0 && (
        <Action
          label="replay"
          about={exactly(replayable, "FlowFile")}
          run={run}
          confirm={{
            question: `Replay ${exactly(replayable, "FlowFile")}?`,
            lost: () => (
              <p>
                Copies with the same attributes and content enter the queues in which the FlowFiles were last. What
                follows there happens again: messages may be published twice. FlowFiles that were replayed before are
                left out.
              </p>
            ),
          }}
        />
      )}
      {done !== undefined && (
        <>
          <p class="bar">
            <progress max={chosenIn(sum)} value={chosenIn(done)} aria-label="progress of the replay" />
            {count(chosenIn(done))} of {count(chosenIn(sum))} done, {count(done.outcomes["replayed"])} replayed
          </p>
          <Outcomes sum={done} title="not replayed" />
        </>
      )}
    </Card>
  );
}

function Outcomes({ sum, title }: { sum: Sum; title: string }): JSX.Element | null {
  const left = Object.entries(sum.outcomes).filter(([outcome, number]) => outcome !== "replayed" && number > 0);
  if (left.length === 0) return null;
  return (
    <>
      <ul aria-label={title}>
        {left.map(([outcome, number]) => (
          <li key={outcome}>
            {count(number)} {REASONS[outcome] ?? outcome}
          </li>
        ))}
      </ul>
      <Table
        caption={`examples: ${title}`}
        rows={sum.examples}
        keyOf={(one) => String(one.flowfile)}
        none=""
        columns={[
          {
            title: "FlowFile",
            cell: (one) => <a href={link(["lineage", String(one.flowfile)])}>{one.flowfile}</a>,
          },
          { title: "why not", cell: (one) => one.reason },
        ]}
      />
    </>
  );
}
