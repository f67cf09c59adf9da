// Follow one event: from a message to its row, and from a row back to its messages.
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";

import { Action } from "../actions";
import type { MessageTrace, RowTrace, TraceReader, TraceStep } from "../answers";
import { call, get, withParams, type Params } from "../api";
import { count, instant, size, time } from "../format";
import { useAsked } from "../newest";
import { link, place } from "../router";
import { Card, ErrorBox, Figure, State, Table, type Tone } from "../ui";

const PATH = "/penstock/v1/trace";
const TONES: Record<string, Tone> = {
  visible: "good",
  running: "good",
  reading: "busy",
  notRead: "busy",
  unparseable: "warn",
  late: "warn",
  early: "warn",
  filtered: "warn",
  hidden: "bad",
  unused: "bad",
  deleted: "bad",
  lost: "bad",
};
const OUTCOMES: Record<string, string> = {
  running: "visible, not published yet",
  notRead: "not read yet",
  published: "published, row unknown",
};

/** The place of the trace of a message. */
export function messageLink(topic: string, partition: number, offset: number): string {
  return link(["trace"], { topic, partition: String(partition), offset: String(offset) });
}

/** The place of the trace of a row: its columns without `__time`, each as text or null. */
export function rowLink(datasource: string, time: string, columns: Record<string, string | null>): string {
  const lines = Object.entries(columns).map(([name, value]) => (value === null ? name : `${name}=${value}`));
  return link(["trace", "row"], { datasource, time, columns: lines.join("\n") });
}

const ONE_SOURCE = /^\s*select\b(?!\s+distinct\b)[^;]*?\bfrom\s+(?:`((?:[^`]|``)+)`|"([^"]+)"|([\w-]+))/i;
const OTHER_ROWS = /\b(join|group\s+by|union|intersect|except|lateral|pivot|unpivot|with)\b/i;
const SIMPLE = /^(TIMESTAMP|VARCHAR|CHAR|BOOLEAN|TINYINT|SMALLINT|INTEGER|BIGINT|FLOAT|DOUBLE|DECIMAL|DATE)/;

/** A name that `columnsOf` finds again before the sign of equality. */
const IN_A_LINE = /^(?!\s)[^=\n]*$(?<!\s)/;

/** Returns the places of the traces of rows; `undefined` unless they are rows of one datasource.
 *
 * A column that is computed, or has another name than in the datasource, finds no row.
 */
export function rowTraces(
  result: { columns: string[]; types: string[] },
  statement: string,
): ((row: unknown[]) => string | undefined) | undefined {
  const at = result.columns.indexOf("__time");
  const source = ONE_SOURCE.exec(statement);
  const after = statement.slice((source?.index ?? 0) + (source?.[0].length ?? 0));
  // Not `FROM a, b` or `FROM catalog.a`.
  const isName = /^(?!\s*(\w+\s*)?,|\.)/.test(after);
  const isOne = source !== null && isName && statement.match(/\bfrom\b/gi)?.length === 1 && !OTHER_ROWS.test(statement);
  if (at < 0 || !isOne) return undefined;
  const datasource = source[1]?.replaceAll("``", "`") ?? source[2] ?? source[3] ?? "";
  return (row) => {
    if (row[at] === null) return undefined;
    const columns: Record<string, string | null> = {};
    result.columns.forEach((name, index) => {
      const value = row[index];
      if (index === at || !SIMPLE.test(result.types[index] ?? "") || !IN_A_LINE.test(name)) return;
      // A text of several lines cannot be a line of the form.
      const text = value === null || value === undefined ? null : String(value);
      if (text === null || (!text.includes("\n") && text === text.trim())) columns[name] = text;
    });
    return rowLink(datasource, String(row[at]), columns);
  };
}

/** Links to the ways in which an event can be followed. */
export function Ways({ current }: { current: "message" | "row" | "flowfile" | "replays" }): JSX.Element {
  const ways = [
    ["message", ["trace"], "from a message to its row"],
    ["row", ["trace", "row"], "from a row to its messages"],
    ["flowfile", ["lineage"], "the lineage of a FlowFile"],
    ["replays", ["replays"], "replay many FlowFiles"],
  ] as const;
  return (
    <nav class="bar" aria-label="ways to follow an event">
      {ways.map(([name, parts, text]) => (
        <a key={name} href={link([...parts])} aria-current={current === name ? "true" : undefined}>
          {text}
        </a>
      ))}
    </nav>
  );
}

export function Trace({ parts }: { parts: string[] }): JSX.Element {
  const isRow = parts[0] === "row";
  return (
    <>
      <h1>Follow one event</h1>
      <Ways current={isRow ? "row" : "message"} />
      {isRow ? <FromRow /> : <FromMessage />}
    </>
  );
}

/** Grows with each repeated request for the place that the page already shows. */
const again = signal(0);

interface FieldProps {
  label: string;
  name: string;
  value: string;
  hint?: string;
  rows?: number;
}

function Field({ label, name, value, hint, rows }: FieldProps): JSX.Element {
  return (
    <label class="field">
      <span>{label}</span>
      {rows === undefined ? (
        <input name={name} defaultValue={value} placeholder={hint} spellcheck={false} />
      ) : (
        <textarea name={name} rows={rows} defaultValue={value} placeholder={hint} spellcheck={false} />
      )}
    </label>
  );
}

function Form({ to, fields }: { to: string[]; fields: FieldProps[] }): JSX.Element {
  const params = place.value.params.toString();
  // A link to another request makes a form with its values; a request of this form keeps the focus.
  const submitted = useRef("");
  const shown = useRef(params);
  if (params !== submitted.current) shown.current = params;
  return (
    <form
      class="bar trace"
      key={shown.current}
      onSubmit={(event) => {
        event.preventDefault();
        const data = new FormData(event.currentTarget);
        const values = fields.map(({ name }) => [name, String(data.get(name) ?? "").trim()] as const);
        const wanted = link(to, Object.fromEntries(values));
        submitted.current = new URLSearchParams(wanted.split("?")[1]).toString();
        if (location.hash === wanted) again.value += 1;
        else location.hash = wanted;
      }}
    >
      {fields.map((field) => (
        <Field key={field.name} {...field} />
      ))}
      <button type="submit">follow</button>
    </form>
  );
}

/** The stream partition counts with an offset only: an id names its message alone. */
const requested = <T extends { partition: string; offset: string }>({ partition, ...others }: T): Params => ({
  ...others,
  partition: others.offset === "" ? undefined : partition,
});

function FromMessage(): JSX.Element {
  const params = place.value.params;
  const value = (name: string): string => params.get(name) ?? "";
  const wanted = {
    topic: value("topic"),
    partition: value("partition") || "0",
    offset: value("offset"),
    id: value("id"),
  };
  const key = wanted.topic === "" ? undefined : JSON.stringify(wanted);
  const found = useAsked<MessageTrace>(key && `${again.value} ${key}`, (signal) => get(withParams(`${PATH}/message`, requested(wanted)), signal));
  return (
    <>
      <Form
        to={["trace"]}
        fields={[
          { label: "topic", name: "topic", value: wanted.topic },
          { label: "stream partition", name: "partition", value: wanted.partition },
          { label: "offset", name: "offset", value: wanted.offset },
          { label: "or message id", name: "id", value: wanted.id, hint: "16 hex digits" },
        ]}
      />
      {key === undefined && (
        <p class="quiet">
          Name a message: its topic, and its stream partition and offset or the id that a consumer gets.
        </p>
      )}
      {found.error && <ErrorBox error={found.error} />}
      {key !== undefined && !found.error && !found.value && <p class="quiet">following the message …</p>}
      {found.value && <Message trace={found.value} />}
    </>
  );
}

function Message({ trace }: { trace: MessageTrace }): JSX.Element {
  const { message } = trace;
  return (
    <div class="grid">
      <Card title="Message" wide>
        <dl class="figures">
          <Figure label="topic" value={<a href={link(["topics", trace.topic])}>{trace.topic}</a>} />
          <Figure label="stream partition" value={trace.partition} />
          <Figure label="offset" value={count(trace.offset)} />
          <Figure label="id" value={<code>{trace.id}</code>} />
          <Figure label="published" value={message.publishedAt === null ? "unknown" : time(instant(message.publishedAt))} />
          <Figure label="size" value={message.kept ? size(message.bytes) : "deleted by the topic"} />
        </dl>
        {trace.flow.length > 0 && <Steps steps={trace.flow} label="steps in the flow" />}
      </Card>
      {trace.readers.length === 0 && (
        <p class="quiet">No supervisor that you may see reads this topic into a datasource.</p>
      )}
      {trace.readers.map((reader) => (
        <Reader key={reader.supervisor} reader={reader} />
      ))}
    </div>
  );
}

function Reader({ reader }: { reader: TraceReader }): JSX.Element {
  return (
    <Card title={reader.datasource} wide>
      <p>
        <State tone={TONES[reader.outcome] ?? "idle"}>{OUTCOMES[reader.outcome] ?? reader.outcome}</State>{" "}
        {reader.reason}
      </p>
      <p class="bar">
        <a href={link(["datasources", reader.datasource])}>datasource {reader.datasource}</a>
        {reader.terminated ? (
          <span>supervisor {reader.supervisor}, which was terminated</span>
        ) : (
          <a href={link(["supervisors", reader.supervisor])}>supervisor {reader.supervisor}</a>
        )}
        {reader.deadLetter?.offset !== undefined && (
          <a href={link(["topics", reader.deadLetter.topic])}>dead-letter topic {reader.deadLetter.topic}</a>
        )}
      </p>
      {reader.rolledUp && <p class="quiet">Rows are rolled up: one row may stand for several messages.</p>}
      {reader.readAgain && (
        <p class="quiet">The supervisor was reset, and will read this message again.</p>
      )}
      <Steps steps={reader.steps} label={`steps to ${reader.datasource}`} />
    </Card>
  );
}

function Steps({ steps, label }: { steps: TraceStep[]; label: string }): JSX.Element {
  return (
    <ol class="steps" aria-label={label}>
      {steps.map((step, number) => (
        <li key={number}>
          <span class="quiet">{step.time === null ? "–" : time(instant(step.time))}</span>
          <span>{step.text}</span>
          {typeof step.details["task"] === "string" && (
            <a href={link(["tasks", step.details["task"]])}>task</a>
          )}
          {typeof step.details["flowfile"] === "number" && (
            <a href={link(["lineage", String(step.details["flowfile"])])}>lineage</a>
          )}
        </li>
      ))}
    </ol>
  );
}

/** Returns the columns of lines NAME=VALUE; NAME alone is null. */
function columnsOf(text: string): Record<string, string | null> {
  const lines = text.split("\n").map((line) => line.trim());
  return Object.fromEntries(
    lines
      .filter((line) => line !== "")
      .map((line) => {
        const at = line.indexOf("=");
        return at < 0 ? [line, null] : [line.slice(0, at), line.slice(at + 1)];
      }),
  );
}

function FromRow(): JSX.Element {
  const params = place.value.params;
  const value = (name: string): string => params.get(name) ?? "";
  const [datasource, at, columns] = [value("datasource"), value("time"), value("columns")];
  const body = { datasource, time: at, columns: columnsOf(columns) };
  const key = datasource === "" ? undefined : JSON.stringify(body);
  const found = useAsked<RowTrace>(key && `${again.value} ${key}`, (signal) => call("POST", `${PATH}/row`, body, signal));
  return (
    <>
      <Form
        to={["trace", "row"]}
        fields={[
          { label: "datasource", name: "datasource", value: datasource },
          { label: "__time", name: "time", value: at, hint: "2026-01-31T08:00:00Z" },
          { label: "columns, a line each", name: "columns", value: columns, hint: "page=/cart", rows: 3 },
        ]}
      />
      {key === undefined && (
        <p class="quiet">Name a row: its datasource, its time, and as many of its columns as it needs.</p>
      )}
      {found.error && <ErrorBox error={found.error} />}
      {key !== undefined && !found.error && !found.value && <p class="quiet">following the row …</p>}
      {found.value && <Row key={key} first={found.value} body={body} />}
    </>
  );
}

function Row({ first, body }: { first: RowTrace; body: object }): JSX.Element {
  const [trace, setTrace] = useState(first);
  const [messages, setMessages] = useState(first.messages);
  const scanFurther = async (): Promise<void> => {
    const more = await call<RowTrace>("POST", `${PATH}/row`, { ...body, cursor: trace.cursor });
    setTrace(more);
    setMessages([...messages, ...more.messages]);
  };
  return (
    <div class="grid">
      <Card title={trace.datasource} wide>
        <dl class="figures">
          <Figure label="time" value={time(instant(trace.time))} />
          <Figure label="equal rows in SQL" value={count(trace.rows)} />
        </dl>
        {trace.unread !== "" && <p class="quiet">Not all files were searched: {trace.unread}.</p>}
        {trace.rolledUp && <p class="quiet">Rows are rolled up: one row may stand for several messages.</p>}
        <Table
          caption="segments with the row"
          rows={trace.segments}
          keyOf={(one) => one.segment}
          none={trace.running.length > 0 ? "No published segment has the row yet." : "SQL shows no such row."}
          columns={[
            { title: "segment", cell: (one) => one.segment },
            { title: "rows", cell: (one) => count(one.rows), right: true },
            {
              title: "written by",
              cell: (one) => (one.task ? <a href={link(["tasks", one.task])}>{one.task}</a> : one.reason),
            },
            { title: "published", cell: (one) => (one.publishedAt ? time(instant(one.publishedAt)) : ""), extra: true },
            {
              title: "input",
              cell: (one) => (one.input ? <code>{JSON.stringify(one.input)}</code> : one.task && one.reason),
              extra: true,
            },
          ]}
        />
        {trace.running.map((one) => (
          <p key={one.sequence}>
            {count(one.rows)} in the files of the running task{" "}
            <a href={link(["tasks", one.task])}>{one.task}</a>, not published yet
          </p>
        ))}
      </Card>
      <Card title="Messages" wide>
        {trace.notes.map((note) => (
          <p key={note} class="quiet">
            {note}
          </p>
        ))}
        <Table
          caption="messages that make the row"
          rows={messages}
          keyOf={(one) => `${one.topic} ${one.id}`}
          none={
            trace.toScan === 0
              ? "The row was not read from a topic."
              : "No message that the topic still has makes this row."
          }
          columns={[
            { title: "topic", cell: (one) => <a href={link(["topics", one.topic])}>{one.topic}</a> },
            { title: "partition", cell: (one) => one.partition, right: true },
            {
              title: "offset",
              cell: (one) => (
                <a href={messageLink(one.topic, one.partition, one.offset)}>{count(one.offset)}</a>
              ),
              right: true,
            },
            { title: "published", cell: (one) => (one.publishedAt ? time(instant(one.publishedAt)) : "") },
            { title: "id", cell: (one) => <code>{one.id}</code>, extra: true },
          ]}
        />
        {trace.toScan > 0 && (
          <p class="bar">
            {count(trace.scanned)} of {count(trace.toScan)} messages of the sequence scanned
            {trace.cursor !== null && <Action label="scan further" run={scanFurther} />}
          </p>
        )}
      </Card>
    </div>
  );
}
