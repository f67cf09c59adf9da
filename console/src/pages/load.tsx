// Load data: from a file or a topic to the first query.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { Action } from "../actions";
import type { InputSample, SegmentTimeline, TimelineCell } from "../answers";
import { ApiError, call, checkExactly, get, rest, withParams } from "../api";
import { exactly, instant, intervalText, shortTime } from "../format";
import { Progress, type Submitted } from "../load_progress";
import { ShapeRows } from "../load_rows";
import { ChooseSource } from "../load_source";
import {
  chunksOf,
  dimensionsOf,
  specOf,
  timestampSpec,
  type Destination,
  type JsonObject,
  type Shape,
  type Source,
} from "../load_spec";
import { useAsked, useNewest } from "../newest";
import { Card, ErrorBox, State } from "../ui";
import { isKnown } from "./datasources";

const SAMPLE = "/penstock/v1/sample";
const AFTER_CHANGE_MS = 250;
const SEGMENTS_NOTED = 1_000;

export function Load(): JSX.Element {
  const [source, setSource] = useState<Source>();
  const [sample, setSample] = useState<InputSample>();
  const [shape, setShape] = useState<Shape>();
  const [to, setTo] = useState<Destination>({ datasource: "", isAppended: true, granularity: "DAY" });
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<Error>();
  const [submitted, setSubmitted] = useState<Submitted>();
  const newest = useNewest();

  /** Reads the rows, after a short rest so that changes in quick succession are one request. */
  function read(body: JsonObject, found: (sample: InputSample) => void, restMs: number): void {
    setBusy(true);
    void newest.ask(
      async (signal) => {
        await rest(restMs);
        signal.throwIfAborted();
        return checkExactly<InputSample>(SAMPLE, signal, body);
      },
      (sample) => {
        found(sample);
        setError(undefined);
        setBusy(false);
      },
      (failure) => {
        setError(failure);
        setBusy(false);
      },
    );
  }

  function guess(chosen: Source, format?: JsonObject): void {
    read(
      { ...inputOf(chosen), ...(format ? { inputFormat: format } : {}) },
      (found) => {
        const time = found.timestampSpec;
        const first = time === null ? [] : [{ name: time.column, type: typeOfTime(time.format), isKept: true }];
        setSample(found);
        setShape({
          format: found.inputFormat,
          time,
          columns: [...first, ...found.dimensions.map((one) => ({ ...one, isKept: true }))],
        });
        setTo((before) => ({ ...before, granularity: found.time?.usualGranularity ?? before.granularity }));
      },
      0,
    );
  }

  function choose(chosen: Source): void {
    setSource(chosen);
    setSample(undefined);
    setShape(undefined);
    setSubmitted(undefined);
    setError(undefined);
    setTo((before) => ({ ...before, datasource: chosen.name }));
    guess(chosen);
  }

  function change(next: Shape): void {
    setShape(next);
    if (source === undefined || next.time === null) return;
    read(
      {
        ...inputOf(source),
        inputFormat: next.format,
        timestampSpec: timestampSpec(next.time),
        dimensions: dimensionsOf(next),
      },
      (found) => setSample((before) => ({ ...found, timeCandidates: before?.timeCandidates ?? [] })),
      AFTER_CHANGE_MS,
    );
  }

  return (
    <>
      <h1>Load data</h1>
      <div class="grid load">
        <Card title="1. Source" wide>
          <ChooseSource onChosen={choose} />
        </Card>
        {source && (error || isBusy || sample) && (
          <Card title="2. Rows" wide>
            {error && <ErrorBox error={error} />}
            {sample && shape ? (
              <ShapeRows
                source={source}
                sample={sample}
                shape={shape}
                isBusy={isBusy}
                onShape={change}
                onFormat={(format) => guess(source, format)}
              />
            ) : (
              <p role="status">{isBusy && <State tone="busy">reading the first rows …</State>}</p>
            )}
          </Card>
        )}
        {source && sample && shape?.time && sample.time && (
          <>
            <Card title="3. Destination" wide>
              <ChooseDestination sample={sample} to={to} isStream={source.topic !== undefined} onChange={setTo} />
            </Card>
            <Card title="4. Load" wide>
              <Submit
                key={JSON.stringify([source, shape, to])}
                spec={specOf(source, shape, to)}
                to={to}
                isStream={source.topic !== undefined}
                spanMs={spanOf(sample)}
                onSubmitted={setSubmitted}
              />
            </Card>
          </>
        )}
        {submitted && <Progress key={submitted.atMs} submitted={submitted} />}
      </div>
    </>
  );
}

/** The input of a sample; messages of a topic are a part of a stream. */
function inputOf(source: Source): JsonObject {
  return { inputSource: source.input, ...(source.topic === undefined ? {} : { stream: true }) };
}

function typeOfTime(format: string): string {
  return ["posix", "millis", "micro", "nano"].includes(format) ? "long" : "string";
}

function spanOf(sample: InputSample): number {
  const { start, end } = sample.time ?? {};
  return start === undefined || end === undefined ? 0 : Date.parse(end) - Date.parse(start);
}

function ChooseDestination({
  sample,
  to,
  isStream,
  onChange,
}: {
  sample: InputSample;
  to: Destination;
  isStream: boolean;
  onChange: (to: Destination) => void;
}): JSX.Element {
  const time = sample.time;
  return (
    <>
      <div class="bar">
        <label>
          datasource{" "}
          <input
            value={to.datasource}
            onInput={(event) => onChange({ ...to, datasource: event.currentTarget.value.trim() })}
          />
        </label>
        {time?.start && (
          <span>
            times from {shortTime(instant(time.start))} to {shortTime(instant(time.end ?? ""))}
            {!time.exact && " in the rows that were read"}
          </span>
        )}
      </div>
      {!isStream && (
        <fieldset class="choices">
          <legend>If the datasource has rows already</legend>
          <label>
            <input type="radio" name="mode" checked={to.isAppended} onChange={() => onChange({ ...to, isAppended: true })} />{" "}
            append
          </label>
          <label>
            <input type="radio" name="mode" checked={!to.isAppended} onChange={() => onChange({ ...to, isAppended: false })} />{" "}
            replace the time chunks that get rows
          </label>
        </fieldset>
      )}
      {!isStream && <Existing to={to} sample={sample} />}
      <fieldset class="choices">
        <legend>Time chunks{isStream && " of 30 days, estimated from the messages above"}</legend>
        {(time?.granularities ?? []).map((one) => (
          <label key={one.name}>
            <input
              type="radio"
              name="granularity"
              checked={to.granularity === one.name}
              onChange={() => onChange({ ...to, granularity: one.name })}
            />{" "}
            {one.name.toLowerCase()}{" "}
            <span class="quiet">
              {!time?.exact && "about "}
              {exactly(one.chunks, "chunk")}
              {one.segments !== null && `, ${exactly(one.segments, "segment")}`}
              {one.rowsEach !== null && ` of ${exactly(one.rowsEach, "row")}`}
            </span>
            {(one.segments ?? one.chunks) > SEGMENTS_NOTED && <State tone="warn">many small segments</State>}
          </label>
        ))}
      </fieldset>
    </>
  );
}

/** What the datasource has where rows will be loaded. */
function Existing({ to, sample }: { to: Destination; sample: InputSample }): JSX.Element | null {
  const { start, end, exact } = sample.time ?? {};
  const name = to.datasource;
  const isAskable = name !== "" && start !== undefined && end !== undefined;
  const chunks = isAskable ? chunksOf(start, end, to.granularity) : undefined;
  const path = withParams(`/penstock/v1/datasources/${encodeURIComponent(name)}/segments/timeline`, {
    interval: chunks?.join("/"),
    cells: 1,
  });
  const { value, error } = useAsked<SegmentTimeline | "new">(
    // Asked again with each choice: rows may have been loaded meanwhile.
    isAskable ? `${path} ${String(to.isAppended)}` : undefined,
    async (signal) => ((await isKnown(name, signal)) ? get<SegmentTimeline>(path, signal) : "new"),
    AFTER_CHANGE_MS,
  );
  const isNew = value === "new" || (error instanceof ApiError && error.status === 404);
  const text = isNew
    ? `${name} is new.`
    : value !== undefined
      ? existingText(value, to, chunks ?? undefined, exact === true)
      : error?.message;
  return <p role="status">{text}</p>;
}

function existingText(found: SegmentTimeline, to: Destination, chunks: string[] | undefined, isExact: boolean): string {
  const sum = (of: (cell: TimelineCell) => number | undefined): number =>
    found.cells.reduce((all, cell) => all + (of(cell) ?? 0), 0);
  const rows = sum((cell) => cell.visible?.rows);
  const running = sum((cell) => cell.running?.rows);
  const unpublished = running === 0 ? "" : ` It has ${exactly(running, "row")} in running tasks there, which stay.`;
  const where = chunks ? `from ${intervalText(chunks.join("/"))}` : "at any time";
  if (rows === 0) return `${to.datasource} exists, and has no published rows ${where}.${unpublished}`;
  const segments = exactly(sum((cell) => cell.visible?.segments), "segment");
  const has = `${to.datasource} has ${exactly(rows, "row")} in ${segments} ${where}`;
  if (to.isAppended) return `${has}. They stay, and the new rows are added.${unpublished}`;
  const more = isExact ? "" : ", which may be more than those read here";
  return `${has}. They are replaced in every time chunk in which the input has rows${more}.${unpublished}`;
}

function Submit({
  spec,
  to,
  isStream,
  spanMs,
  onSubmitted,
}: {
  spec: JsonObject;
  to: Destination;
  isStream: boolean;
  spanMs: number;
  onSubmitted: (submitted: Submitted) => void;
}): JSX.Element {
  const [text, setText] = useState(JSON.stringify(spec, null, 2));
  const [loaded, setLoaded] = useState<string>();
  // A stream's spec may be submitted again; a file's would load its rows twice.
  const isLoaded = !isStream && loaded === text;
  async function submit(): Promise<void> {
    const body = JSON.parse(text) as unknown;
    const path = isStream ? "/druid/indexer/v1/supervisor" : "/druid/indexer/v1/task";
    const atMs = Date.now();
    const made = await call<{ task?: string; id?: string }>("POST", path, body);
    const datasource = datasourceOf(body) ?? to.datasource;
    setLoaded(text);
    onSubmitted({ task: made.task ?? "", supervisor: made.id ?? "", datasource, spanMs, atMs });
  }
  return (
    <>
      <Action
        label={isStream ? "start the supervisor" : "load the rows"}
        run={submit}
        disabled={to.datasource === "" || isLoaded}
        hint={
          to.datasource === ""
            ? "name the datasource above"
            : isLoaded
              ? "it was submitted: change something to load it again"
              : "submits the spec below"
        }
      />
      <details>
        <summary>The spec of the {isStream ? "supervisor" : "task"}, as JSON</summary>
        <textarea
          class="wide mono"
          rows={18}
          spellcheck={false}
          aria-label="spec"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <p class="quiet">
          It is submitted as it stands here. A change above writes it anew. The same spec can be submitted with penstock{" "}
          {isStream ? "supervisor" : "task"} submit.
        </p>
      </details>
    </>
  );
}

function datasourceOf(body: unknown): string | undefined {
  const found = (body as { spec?: { dataSchema?: { dataSource?: unknown } } } | null)?.spec?.dataSchema?.dataSource;
  return typeof found === "string" ? found : undefined;
}
