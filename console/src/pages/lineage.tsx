// Lineage: where a FlowFile came from, what happened to it, what became of it; and replays.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { Action } from "../actions";
import type { Lineage as Found, ProvenanceEvent } from "../answers";
import { call, newId, withParams } from "../api";
import { count, exactly, size, time } from "../format";
import { useLive } from "../live";
import { link, place } from "../router";
import { Answer, Card, Table } from "../ui";
import { messageLink, Ways } from "./trace";

const PATH = "/penstock/v1/flow/provenance";
const EVERY_S = 5;
const DEPTH = "5";
const DEEPEST = 20;

/** `#/lineage/12` is FlowFile 12; `#/lineage?topic=clicks&partition=0&offset=7` a message. */
export function Lineage({ parts }: { parts: string[] }): JSX.Element {
  const params = place.value.params;
  const of = (name: string): string | undefined => params.get(name) ?? undefined;
  const [flowfile] = parts;
  const topic = of("topic");
  const depth = of("depth") ?? DEPTH;
  const isAsked = flowfile !== undefined || topic !== undefined;
  const query =
    flowfile !== undefined
      ? { flowfile, depth }
      : { topic, partition: of("partition") ?? "0", offset: of("offset") ?? "0", depth };
  const live = useLive<Found>(isAsked ? withParams(PATH, query) : null, EVERY_S);
  return (
    <>
      <h1>Lineage</h1>
      <Ways current="flowfile" />
      <Card title="Find a FlowFile or a message">
        <Finder key={location.hash} flowfile={flowfile} topic={topic} partition={of("partition")} offset={of("offset")} />
      </Card>
      {isAsked && (
        <Answer live={live}>
          {(found) => <Shown found={found} flowfile={flowfile} depth={Number(depth)} params={params} />}
        </Answer>
      )}
    </>
  );
}

interface FinderProps {
  flowfile: string | undefined;
  topic: string | undefined;
  partition: string | undefined;
  offset: string | undefined;
}

function Finder({ flowfile, topic, partition, offset }: FinderProps): JSX.Element {
  return (
    <>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          location.hash = link(["lineage", text(event.currentTarget, "flowfile")]);
        }}
      >
        <label>
          FlowFile <input name="flowfile" inputMode="numeric" required size={12} defaultValue={flowfile} />
        </label>
        <button type="submit">show its lineage</button>
      </form>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          const form = event.currentTarget;
          const given = ["topic", "partition", "offset"].map((name) => [name, text(form, name)]);
          location.hash = link(["lineage"], Object.fromEntries(given) as Record<string, string>);
        }}
      >
        <label>
          topic <input name="topic" required size={16} defaultValue={topic} />
        </label>
        <label>
          partition <input name="partition" inputMode="numeric" size={4} defaultValue={partition ?? "0"} />
        </label>
        <label>
          offset <input name="offset" inputMode="numeric" required size={10} defaultValue={offset} />
        </label>
        <button type="submit">show the FlowFiles of this message</button>
      </form>
    </>
  );
}

function text(form: HTMLFormElement, name: string): string {
  return String(new FormData(form).get(name) ?? "").trim();
}

interface ShownProps {
  found: Found;
  flowfile: string | undefined;
  depth: number;
  params: URLSearchParams;
}

function Shown({ found, flowfile, depth, params }: ShownProps): JSX.Element {
  if (found.events.length === 0)
    return (
      <p class="quiet">
        {flowfile !== undefined
          ? `There is no event of FlowFile ${flowfile}: it is older than the retention of provenance, or never existed.`
          : "No FlowFile of the record was received as this message, or sent as it."}
      </p>
    );
  const deeper = { ...Object.fromEntries(params), depth: String(Math.min(DEEPEST, depth * 2)) };
  return (
    <>
      <div class="grid">
        <Card title={found.flowfiles.length === 1 ? "FlowFile" : "FlowFiles"} wide>
          <Tree found={found} first={found.flowfiles[0] ?? -1} />
          {!found.complete && (
            <p>
              Not everything is shown.{" "}
              {depth < DEEPEST && (
                <a href={link(flowfile === undefined ? ["lineage"] : ["lineage", flowfile], deeper)}>
                  show more generations
                </a>
              )}
            </p>
          )}
        </Card>
        <Card title={`Events (${count(found.events.length)})`} wide>
          <div class="lineage">
            <Events found={found} />
          </div>
        </Card>
      </div>
    </>
  );
}

/** The FlowFile with its ancestors above and its descendants below, as nested lists. */
function Tree({ found, first }: { found: Found; first: number }): JSX.Element {
  const parents = new Map<number, Set<number>>();
  const children = new Map<number, Set<number>>();
  const add = (map: Map<number, Set<number>>, one: number, other: number): void => {
    if (!map.has(one)) map.set(one, new Set());
    map.get(one)?.add(other);
  };
  for (const event of found.events) {
    if (event.flowfile === undefined) continue;
    for (const one of event.parents ?? []) {
      add(parents, event.flowfile, one);
      add(children, one, event.flowfile);
    }
    for (const one of event.children ?? []) {
      add(children, event.flowfile, one);
      add(parents, one, event.flowfile);
    }
  }
  const shown = { found, of: new Set(found.flowfiles) };
  return (
    <div class="lineage">
      <Relatives {...shown} title="from" of={shown.of} map={parents} number={first} seen={new Set([first])} />
      <p>
        <Node key={first} found={found} number={first} isFirst />
      </p>
      <Relatives {...shown} title="into" of={shown.of} map={children} number={first} seen={new Set([first])} />
    </div>
  );
}

interface RelativesProps {
  found: Found;
  title: string;
  of: Set<number>;
  map: Map<number, Set<number>>;
  number: number;
  seen: Set<number>;
}

function Relatives(props: RelativesProps): JSX.Element | null {
  const { found, title, map, number, seen } = props;
  // A FlowFile with several parents is shown once.
  const next = [...(map.get(number) ?? [])].filter((one) => !seen.has(one));
  for (const one of next) seen.add(one);
  if (next.length === 0) return null;
  return (
    <ul aria-label={`${title}: FlowFiles`}>
      {next.map((one) => (
        <li key={one}>
          <span class="quiet">{title}</span> <Node found={found} number={one} />
          <Relatives {...props} number={one} />
        </li>
      ))}
    </ul>
  );
}

function Node({ found, number, isFirst }: { found: Found; number: number; isFirst?: boolean }): JSX.Element {
  const own = found.events.filter((event) => event.flowfile === number);
  const last = own.at(-1);
  const name = own.find((event) => event.filename)?.filename;
  const queue = [...own].reverse().find((event) => event.queue)?.queue;
  return (
    <>
      {isFirst ? <strong>FlowFile {number}</strong> : <a href={link(["lineage", String(number)])}>FlowFile {number}</a>}{" "}
      {name} <span class="quiet">{last === undefined ? "its events are no longer kept" : ending(found, last)}</span>{" "}
      {queue !== undefined && <Replay number={number} queue={found.names[queue] ?? queue} bytes={last?.size} />}
    </>
  );
}

function ending(found: Found, event: ProvenanceEvent): string {
  const at = `${event.event} ${time(event.time)}`;
  if (event.queue) return `${at}, in ${found.names[event.queue] ?? event.queue}`;
  return event.reason ? `${at}, ${event.reason}` : at;
}

function Replay({ number, queue, bytes }: { number: number; queue: string; bytes: number | undefined }): JSX.Element {
  // The same for each attempt, so that an answer that was lost does not lead to a second replay.
  const [key, setKey] = useState(newId);
  const run = async (): Promise<string> => {
    const path = withParams("/penstock/v1/flow/replay", { flowfile: number, key });
    const done = await call<{ flowfile: number }>("POST", path);
    setKey(newId());
    return `it is FlowFile ${done.flowfile} now`;
  };
  return (
    <Action
      label="replay"
      about={`FlowFile ${number}`}
      run={run}
      confirm={{
        question: `Replay FlowFile ${number}?`,
        lost: () => (
          <p>
            A copy with the same attributes and {size(bytes)} of content enters {queue} again. What
            follows there happens again: messages may be published twice.
          </p>
        ),
      }}
    />
  );
}

function Events({ found }: { found: Found }): JSX.Element {
  const named = (id: string | undefined): string => (id ? (found.names[id] ?? id) : "");
  return (
    <Table
      caption="events of the FlowFiles"
      rows={found.events}
      keyOf={(event) => event.id}
      none="There is no event."
      columns={[
        { title: "time", cell: (event) => time(event.time) },
        { title: "event", cell: (event) => event.event },
        { title: "FlowFile", right: true, cell: (event) => event.flowfile ?? exactly(event.count, "FlowFile") },
        { title: "processor", cell: (event) => named(event.component) },
        { title: "to", cell: (event) => [event.relationship, named(event.queue)].filter(Boolean).join(", into ") },
        { title: "what", cell: (event) => <What event={event} /> },
        { title: "size", right: true, extra: true, cell: (event) => size(event.size) },
        { title: "content", extra: true, cell: contentOf },
        { title: "flow revision", right: true, extra: true, cell: (event) => event.revision },
      ]}
    />
  );
}

function What({ event }: { event: ProvenanceEvent }): JSX.Element {
  const many = (ids: number[] | undefined, all: number | undefined): string =>
    (ids ?? []).slice(0, 5).join(", ") + ((all ?? 0) > 5 ? ` and ${count((all ?? 0) - 5)} more` : "");
  if (event.topic !== undefined && event.topic !== "") {
    const { topic, partition, offset } = event;
    return (
      <>
        <a href={link(["topics", topic])}>{topic}</a>
        {partition !== undefined && offset !== undefined && (
          <>
            ,{" "}
            <a href={messageLink(topic, partition, offset)}>
              partition {partition}, offset {offset}
            </a>
          </>
        )}
      </>
    );
  }
  const facts = [
    event.parents && `from ${many(event.parents, event.parent_count)}`,
    event.children && `into ${many(event.children, event.child_count)}`,
    event.principal && `by ${event.principal}`,
    event.reason,
  ];
  return <>{facts.filter(Boolean).join("; ")}</>;
}

function contentOf(event: ProvenanceEvent): JSX.Element | string {
  if (!event.resource) return "";
  const at = (event.claim_offset ?? 0) + (event.content_offset ?? 0);
  return <code>{`${event.section}/${event.resource} at ${at}`}</code>;
}
