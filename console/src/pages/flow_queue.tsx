// A queue of a flow: its numbers, its FlowFiles with attributes and content, and their end.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import { Action } from "../actions";
import type { DropRequest, FlowConnection, QueuedFlowFile, QueueList } from "../answers";
import { ApiError, call, follow, get, getBytes, isAway, rest, save, withParams } from "../api";
import { laidOutJson } from "../exact_json";
import { count, counted, size, time } from "../format";
import { useLive } from "../live";
import { useNewest } from "../newest";
import { link, place, setParams } from "../router";
import { Card, ErrorBox, Figure, Pager, State, Table } from "../ui";
import { linkTo } from "./flow_view";

const PAGE = 25;
const LISTED_MAX = 10_000; // the server lists no more in order
const VIEW_BYTES = 65_536;
const PIECE_BYTES = 8 << 20;
const DOWNLOAD_BYTES_MAX = 512 << 20; // kept in memory by the browser
const SHORT_CHARACTERS = 160;
const VALUE_CHARACTERS = 500;
const POLL_MS = 200;

export function QueueCard({ id }: { id: string }): JSX.Element {
  const live = useLive<FlowConnection>(withParams("/flow/queue/status", { connection: id }));
  const connection = live.value;
  if (connection === undefined) {
    return (
      <Card title="Queue" wide>
        {live.error ? <ErrorBox error={live.error} /> : <p class="quiet">waiting for the server …</p>}
      </Card>
    );
  }
  return (
    <Card title={connection.name} wide>
      {live.error && <ErrorBox error={live.error} />}
      <dl class="figures">
        <Figure label="from" value={<a href={linkTo({ part: connection.source })}>{connection.sourceName}</a>} />
        <Figure label="to" value={<a href={linkTo({ part: connection.destination })}>{connection.destinationName}</a>} />
        <Figure
          label="waiting"
          value={connection.full ? <State tone="bad">{count(connection.queued)}, full</State> : count(connection.queued)}
        />
        <Figure label="size" value={size(connection.queuedBytes)} />
        <Figure label="full at" value={`${count(connection.backPressureCount)} or ${size(connection.backPressureBytes)}`} />
        <Figure label="in memory" value={`${count(connection.active)} · ${size(connection.activeBytes)}`} />
        <Figure
          label="swapped to disk"
          value={`${count(connection.swapped)} · ${size(connection.swappedBytes)} in ${counted(connection.swapFiles, "file")}`}
        />
        <Figure label="penalized" value={count(connection.penalized)} />
        <Figure label="in runs now" value={count(connection.unacknowledged)} />
        <Figure label="expired" value={count(connection.expired)} />
        <Figure label="lost" value={count(connection.lost)} />
      </dl>
      {connection.lastSwapFailure && <ErrorBox error={new Error(connection.lastSwapFailure)} />}
      <FlowFiles key={id} connection={connection} />
    </Card>
  );
}

function FlowFiles({ connection }: { connection: FlowConnection }): JSX.Element {
  const [attribute, setAttribute] = useState(place.value.params.get("attribute") ?? "");
  const [value, setValue] = useState(place.value.params.get("value") ?? "");
  const [list, setList] = useState<QueueList>();
  const [skip, setSkip] = useState(0);
  const [error, setError] = useState<Error>();
  const [opened, setOpened] = useState<QueuedFlowFile>();
  const chosen = attribute === "" ? {} : { attribute, value: value || undefined };
  const newest = useNewest();
  const read = (from: number): void => {
    const path = withParams("/flow/queue", {
      connection: connection.id,
      limit: PAGE,
      ...chosen,
      ...(attribute === "" ? { skip: from } : {}),
    });
    void newest.ask(
      (signal) => get<QueueList>(path, signal),
      (found) => {
        setList(found);
        setSkip(from);
        setError(undefined);
      },
      setError,
    );
  };
  useEffect(() => {
    if (attribute !== "") read(0); // somebody shared the address
  }, []);
  return (
    <>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          // Before the answer arrives, because another page may be open then.
          setParams({ attribute, value: attribute === "" ? undefined : value });
          read(0);
        }}
      >
        <label>
          attribute{" "}
          <input value={attribute} placeholder="any" onInput={(event) => setAttribute(event.currentTarget.value)} />
        </label>
        <label>
          value <input value={value} onInput={(event) => setValue(event.currentTarget.value)} />
        </label>
        <button type="submit">show the FlowFiles</button>
        <Action
          label={attribute === "" ? "drop all" : "drop these"}
          about={`FlowFiles of ${connection.name}`}
          disabled={connection.queued === 0}
          hint={connection.queued === 0 ? "the queue is empty" : "deletes FlowFiles and their content"}
          confirm={{
            question:
              attribute === ""
                ? `Drop everything in ${connection.name}?`
                : `Drop the FlowFiles of ${connection.name} with ${attribute} = ${value}?`,
            lost: () => (
              <p>
                {attribute === "" ? "" : "Of "}
                {counted(connection.queued, "FlowFile")} with {size(connection.queuedBytes)} wait
                {attribute === "" ? ", and are deleted with their content" : ", those with this attribute are deleted"}.
                {connection.unacknowledged > 0 &&
                  ` ${count(connection.unacknowledged)} of them are in a run now, and stay.`}{" "}
                This cannot be undone.
              </p>
            ),
          }}
          run={async () => {
            try {
              return await drop(connection.id, chosen);
            } finally {
              if (list) read(0);
            }
          }}
        />
      </form>
      {error && <ErrorBox error={error} />}
      {list && (
        <>
          <Table
            caption="FlowFiles of the queue"
            rows={list.flowFiles}
            keyOf={(one) => String(one.id)}
            none={attribute === "" ? "The queue is empty." : "No FlowFile has this attribute."}
            columns={[
              { title: "place", cell: (one) => (one.position === null ? "" : count(one.position)), right: true },
              {
                title: "FlowFile",
                cell: (one) => (
                  <button
                    type="button"
                    aria-expanded={opened?.id === one.id}
                    onClick={() => setOpened(opened?.id === one.id ? undefined : one)}
                  >
                    {one.id}
                  </button>
                ),
              },
              { title: "size", cell: (one) => size(one.size), right: true },
              { title: "queued", cell: (one) => time(Date.parse(one.queuedDate)), extra: true },
              {
                title: "penalty",
                cell: (one) => (one.penalizedUntil ? `until ${time(Date.parse(one.penalizedUntil))}` : ""),
              },
              { title: "attributes", cell: (one) => <code>{inShort(one.attributes)}</code>, extra: true },
            ]}
          />
          {attribute === "" && (
            <Pager skip={skip} limit={PAGE} found={Math.min(list.queued, LISTED_MAX)} onSkip={read} />
          )}
          {opened && <FlowFileView key={opened.id} connection={connection.id} flowFile={opened} />}
        </>
      )}
    </>
  );
}

async function drop(connection: string, chosen: Record<string, string | undefined>): Promise<string> {
  let found: DropRequest | undefined;
  try {
    found = await call<DropRequest>("POST", withParams("/flow/queue/drop", { connection, ...chosen }), {});
    while (found.state === "waiting" || found.state === "dropping") {
      await rest(POLL_MS);
      found = await follow<DropRequest>(withParams("/flow/queue/drop", { request: found.request }));
    }
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const isForgotten = found !== undefined && error.status === 404;
    if (!isForgotten && !isAway(error)) throw error;
    const why = isForgotten ? "the process of the flow was started again meanwhile" : error.message;
    throw new Error(`${why}. Perhaps not all were dropped: see how many FlowFiles wait, and drop these again`);
  }
  const text = `${counted(found.dropped, "FlowFile")} with ${size(found.droppedBytes)} dropped`;
  if (found.state !== "complete") throw new Error(`${text}, not all: ${found.failure || "it was stopped"}`);
  return text;
}

function inShort(attributes: Record<string, string>): string {
  const text = Object.entries(attributes)
    .map(([name, value]) => `${name}=${value.slice(0, SHORT_CHARACTERS)}`)
    .join(" ");
  return text.length > 2 * SHORT_CHARACTERS ? `${text.slice(0, 2 * SHORT_CHARACTERS)}…` : text;
}

/** One FlowFile: its attributes, and a piece of its content. */
function FlowFileView({ connection, flowFile }: { connection: string; flowFile: QueuedFlowFile }): JSX.Element {
  return (
    <section class="message" aria-label={`FlowFile ${flowFile.id}`}>
      <header>
        <span>FlowFile {flowFile.id}</span>
        <span>{size(flowFile.size)}</span>
        <span>entered {time(Date.parse(flowFile.entryDate))}</span>
        <span>oldest ancestor {time(Date.parse(flowFile.lineageStartDate))}</span>
        <a href={link(["lineage", String(flowFile.id)])}>lineage</a>
      </header>
      <Table
        caption={`attributes of FlowFile ${flowFile.id}`}
        rows={Object.entries(flowFile.attributes).sort(([one], [other]) => (one < other ? -1 : 1))}
        keyOf={([name]) => name}
        none="It has no attributes."
        columns={[
          { title: "attribute", cell: ([name]) => name },
          { title: "value", cell: ([, value]) => <Text text={value} /> },
        ]}
      />
      <Content connection={connection} flowFile={flowFile} />
    </section>
  );
}

function Text({ text }: { text: string }): JSX.Element {
  const [isWhole, setWhole] = useState(false);
  if (isWhole || text.length <= VALUE_CHARACTERS) return <code class="pre">{text}</code>;
  return (
    <>
      <code class="pre">{text.slice(0, VALUE_CHARACTERS)}</code>{" "}
      <button type="button" onClick={() => setWhole(true)}>
        all {count(text.length)} characters
      </button>
    </>
  );
}

const FORMS = ["text", "JSON", "hex"] as const;
type Form = (typeof FORMS)[number];

function Content({ connection, flowFile }: { connection: string; flowFile: QueuedFlowFile }): JSX.Element {
  const [offset, setOffset] = useState(0);
  const [bytes, setBytes] = useState<Uint8Array>();
  const [error, setError] = useState<Error>();
  const [form, setForm] = useState<Form>();
  const of = { connection, flowFile: flowFile.id };
  const newest = useNewest();
  useEffect(() => {
    // The former part stays until the new one has come.
    void newest.ask(
      (signal) => getBytes(withParams("/flow/queue/content", { ...of, offset, limit: VIEW_BYTES }), signal),
      (found) => {
        setBytes(found);
        setError(undefined);
      },
      setError,
    );
  }, [offset]);
  const shown = form ?? (bytes && isText(bytes) ? "text" : "hex");
  const end = offset + (bytes?.length ?? 0);
  return (
    <div class="content">
      <div class="bar" role="group" aria-label="form of the content">
        <strong>Content</strong>
        {FORMS.map((one) => (
          <button key={one} type="button" aria-pressed={shown === one} onClick={() => setForm(one)}>
            {one}
          </button>
        ))}
        <Action
          label="download"
          about={`the content of FlowFile ${flowFile.id}`}
          disabled={flowFile.size > DOWNLOAD_BYTES_MAX}
          hint={
            flowFile.size > DOWNLOAD_BYTES_MAX
              ? `more than ${size(DOWNLOAD_BYTES_MAX)}: read it in parts from /flow/queue/content`
              : `all ${size(flowFile.size)}`
          }
          run={() => download(of, flowFile)}
        />
      </div>
      {error && <ErrorBox error={error} />}
      {bytes && (
        <pre tabIndex={0} aria-label="content">
          {inForm(shown, bytes, offset)}
        </pre>
      )}
      {bytes && flowFile.size > VIEW_BYTES && (
        <nav class="pager" aria-label="parts of the content">
          <button type="button" disabled={offset === 0} onClick={() => setOffset(Math.max(0, offset - VIEW_BYTES))}>
            previous part
          </button>
          <span>
            bytes {count(offset)} to {count(end)} of {count(flowFile.size)}
          </span>
          <button type="button" disabled={end >= flowFile.size} onClick={() => setOffset(end)}>
            next part
          </button>
        </nav>
      )}
    </div>
  );
}

/** Whether bytes are text: no zeros, and nothing that is not UTF-8, but for a cut character at the ends. */
function isText(bytes: Uint8Array): boolean {
  if (bytes.includes(0)) return false;
  const wrong = new TextDecoder().decode(bytes).split("\ufffd").length - 1;
  return wrong <= 2;
}

function inForm(form: Form, bytes: Uint8Array, offset: number): string {
  if (bytes.length === 0) return "(empty)";
  if (form === "hex") return hexOf(bytes, offset);
  const text = new TextDecoder().decode(bytes);
  if (form === "text") return text;
  try {
    return laidOutJson(text, 2);
  } catch (error) {
    const lines = text.split("\n").filter((line) => line.trim() !== "");
    try {
      return lines.map((line) => laidOutJson(line, 2)).join("\n");
    } catch {
      return `This part is not JSON: ${(error as Error).message}`;
    }
  }
}

function hexOf(bytes: Uint8Array, offset: number): string {
  const lines: string[] = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${(offset + at).toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

async function download(of: { connection: string; flowFile: number }, flowFile: QueuedFlowFile): Promise<string> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let offset = 0;
  while (offset < flowFile.size) {
    const part = await getBytes(withParams("/flow/queue/content", { ...of, offset, limit: PIECE_BYTES }));
    if (part.length === 0) break;
    parts.push(part);
    offset += part.length;
  }
  const name = flowFile.attributes["filename"] || `flowfile-${flowFile.id}`;
  save(new Blob(parts, { type: "application/octet-stream" }), name);
  return `${size(offset)} downloaded`;
}
