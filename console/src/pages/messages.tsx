// The messages of a topic: shown without taking them, searched by the server, downloaded; and dead
// letters, published again.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Action } from "../actions";
import type { Peek, PeekedMessage, Redrive, Topic } from "../answers";
import { ApiError, BROKER, bytes, get, post, save, stopped, withParams, type Params } from "../api";
import { laidOutJson } from "../exact_json";
import { count, exactly, size, time } from "../format";
import { useAsked, useNewest } from "../newest";
import { link, place, setParams } from "../router";
import { ErrorBox, Search, State } from "../ui";
import type { Published } from "./topic_actions";
import { messageLink } from "./trace";

const LIMIT = 50;
const SHOWN_BYTES = 20_000;
const REQUESTS_MAX = 10_000;
const REASONS_SHOWN = 5;

interface Filter {
  contains: string;
  json_path: string;
  equals: string;
}

const isFiltered = (filter: Filter): boolean => filter.contains !== "" || filter.json_path !== "";

/** Whether a JSON path is still being written. */
const isBegun = (path: string): boolean => path === "$" || /[.[]$/.test(path);

/** The parameters of a filter; the value counts only with its place. */
const paramsOf = (filter: Filter): Params => ({
  contains: filter.contains,
  json_path: filter.json_path,
  equals: filter.json_path === "" ? undefined : filter.equals,
});

export function Messages({ topic, published }: { topic: Topic; published: Published | undefined }): JSX.Element {
  const name = topic.topic_name;
  // What is read is in the address of the page, so that it can be shared.
  const [shared] = useState(() => sharedPlace(topic.partitions.length));
  const [partition, setPartition] = useState(shared.partition);
  const [from, setFrom] = useState(shared.from);
  const [at, setAt] = useState(shared.at);
  const [filter, setFilter] = useState(shared.filter);
  const [asked, setAsked] = useState<Params>();
  const [found, setFound] = useState<Peek>();
  const [error, setError] = useState<Error>();
  const [isNewestFirst, setNewestFirst] = useState(false);
  const known = topic.partitions[partition];
  const newest = useNewest();

  async function read(begin: Params, wanted = filter): Promise<void> {
    const params = { topic: name, partition, count: LIMIT, ...paramsOf(wanted), ...begin };
    const { offset, timestamp } = begin;
    await newest.ask(
      (signal) => {
        // Before the answer arrives, and never after this page was left: the address is another page's then.
        setParams({
          ...wanted,
          partition: partition === 0 ? undefined : String(partition),
          offset: offset === undefined ? undefined : String(offset),
          time: timestamp === undefined ? undefined : new Date(Number(timestamp)).toISOString().slice(0, 19),
        });
        return get<Peek>(withParams(`${BROKER}/peek`, { ...params, body_bytes: SHOWN_BYTES }), signal);
      },
      (answer) => {
        setFound(answer);
        setAsked(params);
        setError(undefined);
      },
      setError,
    );
  }

  // Offsets of one stream partition mean nothing in another one.
  function choosePartition(chosen: number): void {
    newest.end();
    setPartition(chosen);
    setFound(undefined);
    setAsked(undefined);
    setError(undefined);
  }

  const start = (): Params =>
    at === "" ? { offset: from === "" ? undefined : Number(from) } : { timestamp: Date.parse(`${at}Z`) };
  const readNewest = (end = known?.latest ?? 0): void => {
    setNewestFirst(true);
    void read({ offset: Math.max(known?.earliest ?? 0, end - LIMIT) });
  };
  const readOn = (begin: Params): void => {
    setNewestFirst(false);
    void read(begin);
  };
  useEffect(() => {
    if (shared.isShared) readOn(start());
    else if (name.endsWith(".dead-letter")) readNewest();
  }, [name]);
  useEffect(() => {
    if (!published || !found) return;
    if (isNewestFirst && published.partition === partition) readNewest(published.offset + 1);
    else again.current();
  }, [published]);

  // The fields report after a rest, each from the render in which it was typed.
  const newer = useRef<(changes: Partial<Filter>) => void>(() => undefined);
  newer.current = (changes) => {
    const next = { ...filter, ...changes };
    setFilter(next);
    if (!found || isBegun(next.json_path)) return;
    setNewestFirst(false);
    void read(start(), next);
  };
  const change = (changes: Partial<Filter>): void => newer.current(changes);
  // What was begun from an earlier render reads with the filter of this one.
  const again = useRef<() => void>(() => undefined);
  again.current = () => {
    if (asked) void read({ offset: asked["offset"], timestamp: asked["timestamp"] });
  };

  const letters = found && (found.origins.length > 0 || found.messages.some((one) => one.dead_letter));
  const listed = isNewestFirst ? [...(found?.messages ?? [])].reverse() : (found?.messages ?? []);
  return (
    <>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          readOn(start());
        }}
      >
        {topic.partitions.length > 1 && (
          <label>
            partition{" "}
            <select value={partition} onChange={(event) => choosePartition(Number(event.currentTarget.value))}>
              {topic.partitions.map((one) => (
                <option key={one.partition} value={one.partition}>
                  {one.partition}
                </option>
              ))}
            </select>
          </label>
        )}
        <label>
          from offset{" "}
          <input
            type="number"
            placeholder={String(known?.earliest ?? 0)}
            value={from}
            disabled={at !== ""}
            onInput={(event) => setFrom(event.currentTarget.value)}
          />
        </label>
        <label>
          or from the time in UTC{" "}
          <input
            type="datetime-local"
            step={1}
            value={at}
            onInput={(event) => setAt(event.currentTarget.value)}
          />
        </label>
        <button type="submit">read</button>
        <button type="button" onClick={() => readNewest()}>
          newest
        </button>
      </form>
      <div class="bar">
        <Search label="body contains" value={filter.contains} onChange={(contains) => change({ contains })} />
        <Search label="JSON path, as $.user.id" value={filter.json_path} onChange={(json_path) => change({ json_path })} />
        <Search label="value at the path" value={filter.equals} onChange={(equals) => change({ equals })} />
      </div>
      {error && <ErrorBox error={error} />}
      {found && letters && (
        <RedriveMany topic={topic} filter={filter} onDone={() => again.current()} />
      )}
      {found && (
        <p class="bar">
          <span class="quiet" role="status">
            {count(found.messages.length)} of {exactly(found.scanned, "message")}
            {isFiltered(filter) && " match"}, up to offset {count(found.next_offset)} of {count(found.latest)}
          </span>
          {found.messages.length > 0 && asked && (
            <Action label="download" about="these messages as JSON lines" run={() => downloadLines(asked)} />
          )}
        </p>
      )}
      {listed.map((message) => (
        <Message
          key={`${message.partition} ${message.offset}`}
          topic={name}
          message={message}
          origins={found?.origins ?? []}
          onDone={() => again.current()}
        />
      ))}
      {found && found.next_offset < found.latest && (
        <button type="button" onClick={() => readOn({ offset: found.next_offset })}>
          {found.messages.length === 0 ? "search on" : "next messages"}
        </button>
      )}
    </>
  );
}

interface SharedPlace {
  partition: number;
  from: string;
  at: string;
  filter: Filter;
  /** Whether the address says what to read. */
  isShared: boolean;
}

/** What the address of the page says about the messages to read; what is not valid is left out. */
function sharedPlace(partitions: number): SharedPlace {
  const { params } = place.value;
  const of = (name: string): string => params.get(name) ?? "";
  const partition = Number(of("partition"));
  const shared = {
    partition: Number.isInteger(partition) && partition > 0 && partition < partitions ? partition : 0,
    from: /^\d{1,18}$/.test(of("offset")) ? of("offset") : "",
    at: Number.isNaN(Date.parse(`${of("time")}Z`)) ? "" : of("time"),
    filter: { contains: of("contains"), json_path: of("json_path"), equals: of("equals") },
  };
  const isShared = shared.from !== "" || shared.at !== "" || isFiltered(shared.filter);
  return { ...shared, isShared };
}

/** Saves the messages of a request, whole, one JSON object in each line. */
async function downloadLines(asked: Params): Promise<void> {
  const { messages } = await get<Peek>(withParams(`${BROKER}/peek`, asked));
  const lines = messages.map((one) =>
    JSON.stringify({
      partition: one.partition,
      offset: one.offset,
      time: new Date(one.timestamp / 1e6).toISOString(),
      ...(one.body === undefined ? { body_base64: one.body_base64 } : { body: one.body }),
    }),
  );
  save(new Blob([`${lines.join("\n")}\n`], { type: "application/jsonl" }), `${String(asked["topic"])}.jsonl`);
}

function Message({
  topic,
  message,
  origins,
  onDone,
}: {
  topic: string;
  message: PeekedMessage;
  origins: string[];
  onDone: () => void;
}): JSX.Element {
  const { partition, offset, dead_letter: letter } = message;
  const shown = letter?.body === undefined && letter?.body_base64 === undefined ? message : letter;
  const isLetter = letter !== undefined || origins.length > 0;
  async function download(original: boolean): Promise<void> {
    const data = await bytes(
      withParams(`${BROKER}/message`, { topic, partition, offset, original: original ? 1 : undefined }),
    );
    save(data, `${topic}-${partition}-${offset}.bin`);
  }
  return (
    <article class="message">
      <header>
        <span>offset {count(offset)}</span>
        <span>{time(message.timestamp / 1e6)}</span>
        <span class="mono">{message.id}</span>
        <span>{size(shown.size)}</span>
        {message.due !== null && <span>deferred until {time(message.due)}</span>}
        {shown.body === undefined && <span>binary, as base64</span>}
        {(shown.size ?? 0) > SHOWN_BYTES && <span>the first {size(SHOWN_BYTES)} are shown</span>}
        <Action
          label="download"
          about={`the message at offset ${offset}`}
          run={() => download(shown === letter)}
        />
        <a href={messageLink(topic, partition, offset)} aria-label={`trace the message at offset ${offset}`}>
          trace
        </a>
        {message.redriven === true && <State tone="good">redriven</State>}
      </header>
      {letter && (
        <p class="reason">
          From <a href={link(["topics", letter.topic])}>{letter.topic}</a>, partition {letter.partition},{" "}
          <a href={messageLink(letter.topic, letter.partition, letter.offset)}>offset {count(letter.offset)}</a>:{" "}
          <strong>{letter.reason}</strong>
          {letter.left_out_bytes > 0 && `. The message was left out: it has ${size(letter.left_out_bytes)}`}
        </p>
      )}
      {!letter && origins.length > 0 && (
        <p class="reason">
          A channel of {origins.join(" or ")} delivered it as often as <code>max_attempts</code> allows.
        </p>
      )}
      <pre tabIndex={0}>{textOf(shown)}</pre>
      {isLetter && message.redriven !== true && <RedriveOne topic={topic} message={message} onDone={onDone} />}
    </article>
  );
}

function RedriveOne({
  topic,
  message,
  onDone,
}: {
  topic: string;
  message: PeekedMessage;
  onDone: () => void;
}): JSX.Element {
  const { partition, offset, dead_letter: letter } = message;
  const [text, setText] = useState<string>();
  const [to, setTo] = useState("");
  const isBinary = (letter ?? message).body === undefined;
  async function edit(): Promise<void> {
    const original = letter === undefined ? undefined : 1;
    const data = await bytes(withParams(`${BROKER}/message`, { topic, partition, offset, original }));
    setText(await data.text());
  }
  async function redrive(): Promise<string> {
    const path = withParams(`${BROKER}/topic/redrive`, {
      topic,
      partition,
      offset,
      end: offset + 1,
      to,
      // The user chose this message, and wrote the topic's name.
      confirm: to,
    });
    const report = await post<Redrive>(path, text ?? "");
    onDone();
    return summary(report);
  }
  return (
    <div class="redrive">
      {text !== undefined && (
        <label class="text">
          changed message
          <textarea rows={6} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      <div class="bar tight">
        <Action
          label={text === undefined ? "redrive" : "redrive changed"}
          about={`the dead letter at offset ${offset}`}
          hint="Publishes the message to its topic again, once."
          disabled={text === ""}
          run={redrive}
          {...(text === undefined
            ? {}
            : {
                confirm: {
                  question: `Publish the changed message to ${to || "its topic"}?`,
                  lost: () => (
                    <p>
                      It replaces the dead letter at offset {count(offset)} of {topic}, which then counts as redriven
                      and is not published again.
                    </p>
                  ),
                },
              })}
        />
        {text === undefined ? (
          <Action
            disabled={isBinary}
            hint={isBinary ? "The message is not text." : "Publishes another text instead of the message."}
            label="edit"
            about={`the dead letter at offset ${offset}`}
            run={edit}
          />
        ) : (
          <button type="button" onClick={() => setText(undefined)}>
            do not change
          </button>
        )}
        <label>
          to another topic{" "}
          <input value={to} maxLength={64} onInput={(event) => setTo(event.currentTarget.value)} />
        </label>
      </div>
    </div>
  );
}

/** Redrives all dead letters of a topic that match the filter. */
function RedriveMany({
  topic,
  filter,
  onDone,
}: {
  topic: Topic;
  filter: Filter;
  onDone: () => void;
}): JSX.Element {
  const [to, setTo] = useState("");
  const [confirm, setConfirm] = useState("");
  const [done, setDone] = useState<number>();
  const params = { topic: topic.topic_name, to, ...(to === "" ? {} : { confirm }), ...paramsOf(filter) };
  const which = isFiltered(filter) ? "the matching dead letters" : "all dead letters";
  async function run(): Promise<string> {
    try {
      const report = await redriveAll(topic, params, (sum) => setDone(total(sum)));
      return summary(report);
    } finally {
      setDone(undefined);
      onDone();
    }
  }
  return (
    <div class="bar">
      <Action
        label={isFiltered(filter) ? "redrive the matching" : "redrive all"}
        about="dead letters"
        run={run}
        confirm={{
          question: `Publish ${which} of ${topic.topic_name} again?`,
          lost: () => <RedrivePreview topic={topic} params={params} />,
        }}
      />
      <label>
        to another topic{" "}
        <input value={to} maxLength={64} onInput={(event) => setTo(event.currentTarget.value)} />
      </label>
      {to !== "" && (
        <label title="Messages that name no topic need not be dead letters.">
          its name again, to include messages of unknown origin{" "}
          <input value={confirm} maxLength={64} onInput={(event) => setConfirm(event.currentTarget.value)} />
        </label>
      )}
      {done !== undefined && <span class="quiet">{count(done)} so far …</span>}
    </div>
  );
}

function RedrivePreview({ topic, params }: { topic: Topic; params: Params }): JSX.Element {
  const [step, setStep] = useState<Redrive>();
  const { value, error } = useAsked<Redrive>(JSON.stringify(params), (signal) =>
    redriveAll(topic, { ...params, preview: 1, count: 20_000 }, setStep, signal),
  );
  const report = value ?? step;
  if (error) return <ErrorBox error={error} />;
  if (!report) return <p class="quiet">counting …</p>;
  return (
    <ul>
      {Object.entries(report.redriven).map(([target, number]) => (
        <li key={target}>
          {count(number)} to {target}
        </li>
      ))}
      {total(report) === 0 && <li>none is left to publish</li>}
      <li>{count(report.already)} were published before, and are not published again</li>
      {report.skipped > 0 && <li>{count(report.skipped)} cannot be published</li>}
      {report.reasons.slice(0, REASONS_SHOWN).map((one) => (
        <li key={one.offset}>
          offset {count(one.offset)}: {one.reason}
        </li>
      ))}
    </ul>
  );
}

/** Sends requests for every stream partition until each has reached the end that it has now. */
async function redriveAll(
  topic: Topic,
  params: Params,
  onStep: (sum: Redrive) => void,
  signal?: AbortSignal,
): Promise<Redrive> {
  const sum: Redrive = {
    // Without a prototype: a topic may be called constructor.
    redriven: Object.create(null) as Record<string, number>,
    already: 0,
    skipped: 0,
    reasons: [],
    scanned: 0,
    next_offset: 0,
    end: 0,
    total: 0,
  };
  let requests = 0;
  let soFar = "";
  for (const { partition, latest } of topic.partitions) {
    let offset: number | undefined;
    while (offset === undefined || offset < latest) {
      if (requests === REQUESTS_MAX)
        throw new Error(`${soFar || "not all could be counted"}; there are more dead letters: redrive again`);
      const path = withParams(`${BROKER}/topic/redrive`, { ...params, partition, offset, end: latest });
      const isPreview = params["preview"] !== undefined;
      const report = await post<Redrive>(path, "", signal).catch((error: Error) => {
        throw isPreview || !(error instanceof ApiError) ? error : stopped(error, soFar, "Redrive");
      });
      requests += 1;
      for (const [target, number] of Object.entries(report.redriven)) {
        sum.redriven[target] = (sum.redriven[target] ?? 0) + number;
      }
      sum.already += report.already;
      sum.skipped += report.skipped;
      sum.reasons.push(...report.reasons.slice(0, REASONS_SHOWN));
      sum.total = report.total;
      if (!isPreview && total(sum) > 0) soFar = summary(sum);
      onStep({ ...sum });
      offset = report.next_offset;
    }
  }
  return sum;
}

const total = (report: Redrive): number =>
  Object.values(report.redriven).reduce((sum, number) => sum + number, 0);

function summary(report: Redrive): string {
  const parts = Object.entries(report.redriven).map(([target, number]) => `${count(number)} to ${target}`);
  const texts = [parts.length > 0 ? `redriven: ${parts.join(", ")}` : "nothing was redriven"];
  if (report.already > 0) texts.push(`${count(report.already)} were before`);
  if (report.skipped > 0) {
    texts.push(`${count(report.skipped)} cannot be: ${report.reasons[0]?.reason ?? ""}`);
  }
  return texts.join("; ");
}

/** The body as text: whole JSON with indentation. */
function textOf(message: { size?: number; body?: string; body_base64?: string }): string {
  const text = message.body ?? message.body_base64 ?? "";
  if ((message.size ?? 0) > SHOWN_BYTES || !/^\s*[[{]/.test(text)) return text;
  try {
    return laidOutJson(text, 2);
  } catch {
    return text;
  }
}
