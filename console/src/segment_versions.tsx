// Single segments as intervals × versions: where each lies, how large it is, and which one hides it.
import type { JSX } from "preact";

import type { SegmentTimeline, TimelineSegment } from "./answers";
import { count, exactly, instant, intervalText, size } from "./format";
import { useParts } from "./picture_parts";

const LANE_MAX = 64;
const LANE_MIN = 16;
const LANES_HEIGHT = 240;
const GAP = 3;
const SMALLEST_PX = 3;

export type Measure = "bytes" | "rows" | "segments";

/** The segments of one interval and version: its partitions, one on top of the other. */
interface Block {
  interval: string;
  version: string;
  start: number;
  end: number;
  /** Number of the lane, from the bottom; a version is above all those that it may hide. */
  lane: number;
  parts: TimelineSegment[];
}

function amount(segment: TimelineSegment, measure: Measure): number {
  return measure === "segments" ? 1 : segment[measure];
}

function blocksOf(segments: TimelineSegment[]): Block[] {
  const blocks = new Map<string, Block>();
  for (const one of segments) {
    const key = `${one.interval} ${one.version}`;
    const [start = "", end = ""] = one.interval.split("/");
    const known = blocks.get(key);
    if (known) known.parts.push(one);
    else {
      const { interval, version } = one;
      blocks.set(key, { interval, version, start: instant(start), end: instant(end), lane: 0, parts: [one] });
    }
  }
  const ordered = [...blocks.values()].sort((a, b) => (a.version < b.version ? -1 : a.version > b.version ? 1 : a.start - b.start));
  ordered.forEach((block, index) => {
    for (const below of ordered.slice(0, index))
      if (below.start < block.end && block.start < below.end) block.lane = Math.max(block.lane, below.lane + 1);
  });
  return ordered;
}

function blockText(block: Block): string {
  const bytes = block.parts.reduce((sum, one) => sum + one.bytes, 0);
  const rows = block.parts.reduce((sum, one) => sum + one.rows, 0);
  const states = [...new Set(block.parts.map((one) => one.state))].join(", ");
  const hiders = [...new Set(block.parts.flatMap((one) => one.hiddenBy.map((by) => by.version)))];
  const partitions = block.parts.length > 1 ? `; ${count(block.parts.length)} partitions` : "";
  const hidden = hiders.length > 0 ? `; hidden by version ${hiders.join(", ")}` : "";
  return `${intervalText(block.interval)}, version ${block.version} – ${states}: ${size(bytes)}, ${exactly(rows, "row")}${partitions}${hidden}`;
}

/** The picture; `show` is called with the interval of a chosen block. */
export function VersionPicture({
  answer,
  segments,
  width,
  measure,
  out,
  show,
}: {
  answer: SegmentTimeline;
  segments: TimelineSegment[];
  width: number;
  measure: Measure;
  out: () => void;
  show: (interval: string) => void;
}): JSX.Element {
  const [from = 0, until = 1] = answer.interval.split("/").map(instant);
  const blocks = blocksOf(segments);
  const lanes = Math.max(1, ...blocks.map((one) => one.lane + 1));
  const laneHeight = Math.max(LANE_MIN, Math.min(LANE_MAX, LANES_HEIGHT / lanes));
  const height = lanes * laneHeight;
  const x = (at: number): number => ((Math.min(Math.max(at, from), until) - from) / (until - from)) * width;
  // The area shows the size, so the height is the size for each unit of time.
  const density = (block: Block): number =>
    block.parts.reduce((sum, one) => sum + amount(one, measure), 0) / Math.max(block.end - block.start, 1);
  const most = Math.max(...blocks.map(density), Number.MIN_VALUE);
  const parts = useParts({
    count: blocks.length,
    shown: answer.interval,
    choose: (index) => {
      const block = blocks[index];
      if (block) show(block.interval);
    },
    out,
  });
  const shown = parts.pointed === undefined ? undefined : blocks[parts.pointed];
  const hiders = new Set(
    shown?.parts.flatMap((one) => one.hiddenBy.map((by) => `${by.interval} ${by.version}`)) ?? [],
  );
  return (
    <>
      <svg
        {...parts.picture}
        aria-label="segments by interval and version; arrows move, Enter zooms in, Backspace zooms out"
        width={width}
        height={height}
      >
        {blocks.map((block, index) => {
          const left = x(block.start);
          const wide = Math.max(x(block.end) - left - 1, 1);
          const ground = height - block.lane * laneHeight;
          const tall = Math.max(SMALLEST_PX, (density(block) / most) * (laneHeight - GAP));
          const each = tall / block.parts.length;
          return (
            <g
              key={`${block.interval} ${block.version}`}
              {...parts.part(index)}
              class={hiders.has(`${block.interval} ${block.version}`) ? "hider" : ""}
              aria-label={blockText(block)}
            >
              <rect class="sense" x={left} y={ground - laneHeight} width={wide} height={laneHeight} />
              {block.parts.map((one, number) => {
                const state = one.state === "partlyVisible" ? "visible" : one.state;
                return (
                  <rect
                    key={one.segment}
                    class={`part ${state}`}
                    x={left}
                    y={ground - each * (number + 1)}
                    width={wide}
                    height={each}
                    {...(state === "visible" ? {} : { fill: `url(#pattern-${state})` })}
                  />
                );
              })}
            </g>
          );
        })}
        <line class="ground" x1={0} x2={width} y1={height} y2={height} />
      </svg>
      <p class="pointed-block">
        {shown
          ? blockText(shown)
          : "Each block is an interval of one version, as large as its segments. A newer version is above those that it hides."}
      </p>
    </>
  );
}
