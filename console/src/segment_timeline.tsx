// The segments of a datasource over time: how much lies where, and what of it queries see.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { SegmentTimeline, StateSums, TimelineCell, TimelineSegment } from "./answers";
import { Action } from "./actions";
import { call, get, withParams } from "./api";
import { count, duration, exactly, instant, intervalText, iso, shortTime, size } from "./format";
import { useNewest } from "./newest";
import { useParts } from "./picture_parts";
import { link, place, setParams } from "./router";
import { VersionPicture, type Measure } from "./segment_versions";
import { ErrorBox, Pager, State, Table, useWidth, type Tone } from "./ui";

// Each cell has up to five bars, so that the picture has at most 400.
const CELLS = 80;
const HEIGHT = 180;
const SMALLEST_PX = 3; // a state without bytes is seen, too
const OUT = 10; // times longer
const REFRESH_MS = 5_000;
const REST = 20; // times as long as an answer took
const LISTED = 50;

type StateName = "visible" | "running" | "overshadowed" | "incomplete" | "unused";

interface Kind {
  name: StateName;
  about: string;
}

// From the bottom of a bar to its top.
const KINDS: Kind[] = [
  { name: "visible", about: "queries read them" },
  { name: "running", about: "files of running tasks, which queries read" },
  { name: "overshadowed", about: "in use, but a newer version hides them" },
  { name: "incomplete", about: "in use, but partitions of their version are missing" },
  { name: "unused", about: "marked as unused" },
];
const TONES: Record<string, Tone> = {
  visible: "good",
  partlyVisible: "good",
  overshadowed: "warn",
  incomplete: "bad",
  unused: "idle",
};

function bounds(interval: string): [number, number] {
  const [start = "", end = ""] = interval.split("/");
  return [instant(start), instant(end)];
}

function sums(cell: TimelineCell, state: StateName): StateSums | undefined {
  const { running } = cell;
  if (state !== "running") return cell[state];
  return running && { segments: running.files, bytes: running.bytes, rows: running.rows };
}

function amount(cell: TimelineCell, measure: Measure): number {
  return KINDS.reduce((all, kind) => all + (sums(cell, kind.name)?.[measure] ?? 0), 0);
}

function cellText(cell: TimelineCell): string {
  const parts = KINDS.flatMap(({ name }) => {
    const found = sums(cell, name);
    if (found === undefined) return [];
    const what = name === "running" ? "file" : "segment";
    return `${name}: ${size(found.bytes)}, ${exactly(found.rows, "row")}, ${exactly(found.segments, what)}`;
  });
  const hidden = cell.hiddenBy === null ? "" : `; hidden by version ${cell.hiddenBy}`;
  const versions = cell.versions > 1 ? `; ${count(cell.versions)} versions` : "";
  return `${shortTime(instant(cell.start))} to ${shortTime(instant(cell.end))} – ${parts.join("; ")}${hidden}${versions}`;
}

/** The answer for an interval, asked again while the page is seen. */
function useTimeline(name: string, interval: string | undefined, changes: number) {
  const [answer, setAnswer] = useState<SegmentTimeline>();
  const [error, setError] = useState<Error>();
  const newest = useNewest();
  useEffect(() => {
    let timer = 0;
    const path = `/penstock/v1/datasources/${encodeURIComponent(name)}/segments/timeline`;
    const ask = (): void => {
      const began = Date.now();
      const again = (): void => {
        const rest = Math.max(REFRESH_MS, REST * (Date.now() - began));
        timer = window.setTimeout(() => (document.hidden ? again() : ask()), rest);
      };
      void newest.ask(
        (signal) => get<SegmentTimeline>(withParams(path, { interval, cells: CELLS }), signal),
        (found) => {
          setAnswer(found);
          setError(undefined);
          again();
        },
        (problem) => {
          setError(problem);
          again();
        },
      );
    };
    ask();
    return () => {
      newest.end();
      window.clearTimeout(timer);
    };
  }, [name, interval, changes]);
  return { answer, error };
}

/** `changes` counts the changes of this page, after each of which the picture is asked for anew. */
export function SegmentTimelineCard({
  name,
  changes,
  onChange,
}: {
  name: string;
  changes: number;
  onChange: () => void;
}): JSX.Element {
  const interval = place.value.params.get("interval") ?? undefined;
  const { answer, error } = useTimeline(name, interval, changes);
  const [measure, setMeasure] = useState<Measure>("bytes");
  const show = (wanted: string | undefined): void => setParams({ interval: wanted });
  return (
    <>
      {error && <ErrorBox error={error} />}
      {error && interval !== undefined && (
        <button type="button" onClick={() => show(undefined)}>
          show all of the time
        </button>
      )}
      {answer === undefined && !error && <p class="quiet">adding up the segments …</p>}
      {answer && (
        <>
          <Controls answer={answer} show={show} measure={measure} setMeasure={setMeasure} />
          <Picture answer={answer} measure={measure} show={show} />
          <Legend answer={answer} measure={measure} />
          <CellTable answer={answer} />
          <SegmentList
            key={answer.interval}
            name={name}
            answer={answer}
            measure={measure}
            show={show}
            onChange={onChange}
          />
        </>
      )}
    </>
  );
}

interface Shown {
  answer: SegmentTimeline;
  show: (interval: string | undefined) => void;
}

/** The interval that is `times` as long, around the same middle, within the range of the data. */
function moved(answer: SegmentTimeline, times: number, by: number): string | undefined {
  const [start, end] = bounds(answer.interval);
  const [first, last] = bounds(answer.range);
  const length = (end - start) * times;
  const from = Math.round((start + end - length) / 2 + by * (end - start));
  const low = Math.max(from, first);
  const high = Math.min(from + length, last);
  if (low >= high) return answer.interval;
  return low <= first && high >= last ? undefined : `${iso(low)}/${iso(high)}`;
}

function Controls({
  answer,
  show,
  measure,
  setMeasure,
}: Shown & { measure: Measure; setMeasure: (one: Measure) => void }): JSX.Element {
  const [start, end] = bounds(answer.interval);
  const [first, last] = bounds(answer.range);
  const isWhole = start <= first && end >= last;
  return (
    <div class="bar">
      <button type="button" disabled={start <= first} onClick={() => show(moved(answer, 1, -1))}>
        earlier
      </button>
      <button type="button" disabled={end >= last} onClick={() => show(moved(answer, 1, 1))}>
        later
      </button>
      <button type="button" disabled={isWhole} onClick={() => show(moved(answer, OUT, 0))}>
        zoom out
      </button>
      <button type="button" disabled={isWhole} onClick={() => show(undefined)}>
        all
      </button>
      <label>
        bars by{" "}
        <select
          value={measure}
          onChange={(event) => setMeasure(event.currentTarget.value as Measure)}
        >
          <option value="bytes">size</option>
          <option value="rows">rows</option>
          <option value="segments">segments</option>
        </select>
      </label>
      <span class="sight">
        {intervalText(answer.interval)}, {duration(answer.cellMs)} a bar, {exactly(answer.segments, "segment")}
      </span>
    </div>
  );
}

function Picture({ answer, measure, show }: Shown & { measure: Measure }): JSX.Element {
  const [host, width] = useWidth();
  const [start, end] = bounds(answer.interval);
  const { cells } = answer;
  const most = Math.max(1, ...cells.map((cell) => amount(cell, measure)));
  const x = (at: number): number => ((at - start) / (end - start)) * width;
  const parts = useParts({
    count: cells.length,
    shown: answer.interval,
    choose: (index) => {
      const cell = cells[index];
      if (cell && answer.cellMs > 1) show(`${cell.start}/${cell.end}`);
    },
    out: () => show(moved(answer, OUT, 0)),
  });
  const shown = parts.pointed === undefined ? undefined : cells[parts.pointed];
  return (
    <div ref={host} class="segments">
      <svg
        {...parts.picture}
        aria-label="segments over time; arrows move, Enter zooms in, Backspace zooms out"
        width={width}
        height={HEIGHT}
      >
        <Patterns />
        {cells.map((cell, index) => (
          <g key={index} {...parts.part(index)} aria-label={cellText(cell)}>
            <rect
              class="sense"
              x={x(instant(cell.start))}
              y={0}
              width={Math.max(x(instant(cell.end)) - x(instant(cell.start)), 1)}
              height={HEIGHT}
            />
            <Bars
              cell={cell}
              measure={measure}
              most={most}
              x={x(instant(cell.start))}
              width={x(instant(cell.end)) - x(instant(cell.start))}
            />
          </g>
        ))}
        <line class="ground" x1={0} x2={width} y1={HEIGHT} y2={HEIGHT} />
      </svg>
      <div class="axis" aria-hidden="true">
        {[0, 1, 2].map((at) => (
          <span key={at}>{shortTime(start + ((end - start) * at) / 2)}</span>
        ))}
      </div>
      <p class="pointed">
        {shown
          ? cellText(shown)
          : cells.length === 0
            ? "There is no segment in this interval."
            : "Point at a bar for its numbers; choose it to zoom in."}
      </p>
    </div>
  );
}

function Bars({
  cell,
  measure,
  most,
  x,
  width,
}: {
  cell: TimelineCell;
  measure: Measure;
  most: number;
  x: number;
  width: number;
}): JSX.Element {
  let y = HEIGHT;
  const gap = width > 4 ? 1 : 0;
  return (
    <>
      {KINDS.map(({ name }) => {
        const found = sums(cell, name);
        if (found === undefined) return null;
        const height = Math.max(
          SMALLEST_PX,
          (found[measure] / most) * (HEIGHT - KINDS.length * SMALLEST_PX),
        );
        y -= height;
        return (
          <rect
            key={name}
            class={`part ${name}`}
            x={x}
            y={y}
            width={Math.max(width - gap, 1)}
            height={height}
            {...fillOf(name)}
          />
        );
      })}
    </>
  );
}

function fillOf(name: StateName): { fill?: string } {
  return name === "visible" ? {} : { fill: `url(#pattern-${name})` };
}

/** The lines of each state, so that the colour is not the only difference. */
function Patterns(): JSX.Element {
  const lines: Record<string, string> = {
    running: "M0 2h2M4 6h2",
    overshadowed: "M-2 2l4-4M0 8l8-8M6 10l4-4",
    incomplete: "M0 0l8 8M0 8l8-8",
    unused: "M0 4h8",
  };
  return (
    <defs>
      {Object.entries(lines).map(([name, path]) => (
        <pattern
          key={name}
          id={`pattern-${name}`}
          width={8}
          height={8}
          patternUnits="userSpaceOnUse"
          class={`lines ${name}`}
        >
          <path d={path} />
        </pattern>
      ))}
    </defs>
  );
}

function Legend({ answer, measure }: { answer: SegmentTimeline; measure: Measure }): JSX.Element {
  return (
    <ul class="legend">
      {KINDS.map(({ name, about }) => {
        const found = answer.cells.flatMap((cell) => sums(cell, name) ?? []);
        if (found.length === 0) return null;
        // A segment counts in each cell, so only sizes and rows add up.
        const all = found.reduce((sum, one) => sum + one[measure === "rows" ? "rows" : "bytes"], 0);
        return (
          <li key={name}>
            <svg width={18} height={12} aria-hidden="true">
              <rect class={`part ${name}`} width={18} height={12} {...fillOf(name)} />
            </svg>
            <span>
              <b>{name}</b> {measure === "rows" ? exactly(all, "row") : size(all)}
              <span class="quiet extra"> – {about}</span>
            </span>
          </li>
        );
      })}
    </ul>
  );
}

function CellTable({ answer }: { answer: SegmentTimeline }): JSX.Element {
  const states = KINDS.filter(({ name }) =>
    answer.cells.some((cell) => sums(cell, name) !== undefined),
  );
  return (
    <details class="below">
      <summary>the same as a table</summary>
      <Table
        caption="segments by time"
        rows={answer.cells}
        keyOf={(cell) => cell.start}
        none="There is no segment in this interval."
        columns={[
          { title: "from", cell: (cell) => shortTime(instant(cell.start)) },
          { title: "until", cell: (cell) => shortTime(instant(cell.end)), extra: true },
          { title: "segments", cell: (cell) => count(cell.segments), right: true },
          ...states.map(({ name }) => ({
            title: name,
            cell: (cell: TimelineCell) => size(sums(cell, name)?.bytes),
            right: true,
          })),
          { title: "rows", cell: (cell) => count(amount(cell, "rows")), right: true },
          { title: "versions", cell: (cell) => count(cell.versions), right: true, extra: true },
          { title: "hidden by", cell: (cell) => cell.hiddenBy ?? "", extra: true },
        ]}
      />
    </details>
  );
}

function SegmentList({
  name,
  answer,
  measure,
  show,
  onChange,
}: Shown & {
  name: string;
  measure: Measure;
  onChange: () => void;
}): JSX.Element {
  const [skip, setSkip] = useState(0);
  const [host, width] = useWidth();
  const { segmentList, fileList } = answer;
  if (segmentList === null) {
    return <p class="quiet">Zoom in to see single segments: up to 300 are listed.</p>;
  }
  return (
    <>
      <h3>Segments</h3>
      {segmentList.length > 0 && (
        <div ref={host} class="segments">
          <VersionPicture
            answer={answer}
            segments={segmentList}
            width={width}
            measure={measure}
            out={() => show(moved(answer, OUT, 0))}
            show={show}
          />
        </div>
      )}
      <Table
        caption="single segments"
        rows={segmentList.slice(skip, skip + LISTED)}
        keyOf={(one) => one.segment}
        none="There is no segment in this interval."
        columns={[
          { title: "interval", cell: (one) => intervalText(one.interval) },
          { title: "state", cell: (one) => <State tone={TONES[one.state] ?? "idle"}>{one.state}</State> },
          { title: "size", cell: (one) => size(one.bytes), right: true },
          { title: "rows", cell: (one) => count(one.rows), right: true },
          { title: "partition", cell: (one) => one.partition, right: true, extra: true },
          { title: "version", cell: (one) => one.version },
          { title: "hidden by", cell: hidersOf },
          {
            title: "published by",
            cell: (one) => (one.task === null ? "" : <a href={link(["tasks", one.task])}>{one.task}</a>),
            extra: true,
          },
          { title: "actions", cell: (one) => <MarkOne name={name} segment={one} onChange={onChange} /> },
        ]}
      />
      <Pager skip={skip} limit={LISTED} found={segmentList.length} onSkip={setSkip} />
      {fileList !== null && fileList.length > 0 && (
        <>
          <h3>Files of running tasks</h3>
          <Table
            caption="files of running tasks"
            rows={fileList.slice(0, LISTED)}
            keyOf={(one) => `${one.task} ${one.interval} ${one.rows} ${one.bytes}`}
            none=""
            columns={[
              { title: "interval", cell: (one) => intervalText(one.interval) },
              { title: "task", cell: (one) => <a href={link(["tasks", one.task])}>{one.task}</a> },
              { title: "size", cell: (one) => size(one.bytes), right: true },
              { title: "rows", cell: (one) => count(one.rows), right: true },
            ]}
          />
        </>
      )}
    </>
  );
}

function hidersOf(one: TimelineSegment): string {
  return one.hiddenBy
    .map(({ interval, version }) =>
      interval === one.interval ? version : `${version} (${intervalText(interval)})`,
    )
    .join(", ");
}

/** The button that marks one segment as unused, or as used again. */
function MarkOne({
  name,
  segment,
  onChange,
}: {
  name: string;
  segment: TimelineSegment;
  onChange: () => void;
}): JSX.Element {
  const about = `the segment ${segment.segment}`;
  const mark = async (how: string): Promise<string> => {
    const path = `/druid/indexer/v1/datasources/${encodeURIComponent(name)}/${how}`;
    const found = await call<{ numChangedSegments: number }>("POST", path, { segmentIds: [segment.segment] });
    onChange();
    if (found.numChangedSegments > 0) return "";
    return how === "markUsed"
      ? "nothing changed: a newer version hides it, or its time overlaps another one"
      : "nothing changed: it was unused already";
  };
  if (segment.state === "unused") return <Action label="use again" about={about} run={() => mark("markUsed")} />;
  return (
    <Action
      label="mark unused"
      about={about}
      run={() => mark("markUnused")}
      confirm={{
        question: "Mark this segment as unused?",
        lost: () => (
          <>
            <p class="mono">{segment.segment}</p>
            <p>
              Queries no longer see its {exactly(segment.rows, "row")}, {size(segment.bytes)}. It can be used
              again until a <code>kill</code> task deletes it.
            </p>
          </>
        ),
      }}
    />
  );
}
