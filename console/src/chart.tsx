// Series over time as a chart.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { isDark } from "./theme";

export interface Series {
  label: string;
  values: (number | null)[];
}

const HEIGHT = 260;
const DAY_MS = 86_400_000;
/** Pixels between two times on the axis: the width of a date. */
const TIME_PX = 90;
const CHARACTER_PX = 8;
const COLOURS = ["--accent", "--busy", "--warn", "--good", "--bad", "--quiet"];

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Room for the labels of an axis of values, which may be as long as 9,007,199,254,740,993. */
function widthOf(labels: string[] | null): number {
  const longest = Math.max(0, ...(labels ?? []).map((one) => one.length));
  return Math.max(70, 20 + longest * CHARACTER_PX);
}

function around(min: number, max: number, points: number): [number, number] {
  const half = points > 1 ? (max - min) / (points - 1) / 2 : 0.5;
  return [min - half, max + half];
}

function withZero(min: number, max: number): [number, number] {
  return [Math.min(0, min), max > 0 ? max * 1.05 : 1];
}

/** A time of the axis, in UTC and 24 hours, with its date where another day begins. */
function tick(ms: number, before: number | undefined, everyMs: number): string {
  const [day = "", clock = ""] = new Date(ms).toISOString().split("T", 2);
  if (everyMs >= 28 * DAY_MS) return day.slice(0, 7);
  if (everyMs >= DAY_MS) return day;
  const text = clock.slice(0, everyMs < 1_000 ? 12 : everyMs < 60_000 ? 8 : 5);
  const isNewDay = before === undefined || Math.floor(before / DAY_MS) !== Math.floor(ms / DAY_MS);
  return isNewDay ? `${text}\n${day}` : text;
}

/** A line for each series, over times in ms or over whole numbers. */
export function Chart({
  label,
  x,
  isTime,
  series,
  bars = false,
}: {
  label: string;
  x: number[];
  isTime: boolean;
  series: Series[];
  bars?: boolean;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const isInDark = isDark.value; // the colours of the canvas are those of the moment at which it was made
  useEffect(() => {
    const host = box.current;
    if (host === null) return undefined;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 } };
    const plot = new uPlot(
      {
        width: host.clientWidth,
        height: HEIGHT,
        padding: [null, TIME_PX / 2, null, null],
        ms: 1,
        tzDate: (ms) => uPlot.tzDate(new Date(ms), "Etc/UTC"),
        scales: {
          x: {
            time: isTime,
            // Half of the first and the last bar would lie outside.
            ...(bars ? { range: (_: uPlot, min: number, max: number) => around(min, max, x.length) } : {}),
          },
          // The length of a bar means nothing unless it begins at zero.
          ...(bars ? { y: { range: (_: uPlot, min: number, max: number) => withZero(min, max) } } : {}),
        },
        axes: [
          isTime
            ? {
                ...axis,
                space: TIME_PX,
                values: (_: uPlot, times: number[], _axis: number, _space: number, every: number) =>
                  times.map((at, index) => tick(at, times[index - 1], every)),
              }
            : axis,
          { ...axis, size: (_: uPlot, labels: string[] | null) => widthOf(labels) },
        ],
        series: [
          isTime ? { label: "time (UTC)", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" } : { label: "" },
          ...series.map((one, index) => ({
            label: one.label,
            stroke: colour(COLOURS[index % COLOURS.length] ?? "--accent"),
            width: 1.5,
            ...(bars && uPlot.paths.bars
              ? {
                  // Each series is narrower than the one before it, which it would hide otherwise.
                  paths: uPlot.paths.bars({ size: [0.7 * (1 - index / series.length)] }),
                  fill: colour(COLOURS[index % COLOURS.length] ?? "--accent"),
                  points: { show: false },
                }
              : {}),
          })),
        ],
      },
      [x, ...series.map((one) => one.values)] as uPlot.AlignedData,
      host,
    );
    const resized = new ResizeObserver(() =>
      plot.setSize({ width: host.clientWidth, height: HEIGHT }),
    );
    resized.observe(host);
    return () => {
      resized.disconnect();
      plot.destroy();
    };
  }, [x, series, isTime, bars, isInDark]);
  return <div ref={box} class="chart" role="img" aria-label={label} />;
}
