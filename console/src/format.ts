// Numbers, sizes, times and durations as text.
import { serverNow } from "./api";

const NUMBER = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const NONE = "–";
const CLOCKS_AGREE_MS = 3_000;

export function count(value: number | bigint | undefined | null): string {
  return value === undefined || value === null ? NONE : NUMBER.format(value);
}

/** A number in at most five characters, such as `12.3K`. */
export function short(value: number | undefined | null): string {
  if (value === undefined || value === null) return NONE;
  return Math.abs(value) < 10_000 ? NUMBER.format(Math.round(value)) : SHORT.format(value);
}

/** An exact number with what it counts, for what is lost: `1 segment`, `12,345 segments`. */
export function exactly(value: number | undefined | null, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** A number with what it counts: `1 topic`, `1,234 topics`, `1 entry`, `2 entries`. */
export function counted(value: number | undefined | null, one: string, many = `${one}s`): string {
  return `${short(value)} ${value === 1 ? one : many}`;
}

export function size(bytes: number | undefined | null): string {
  if (bytes === undefined || bytes === null) return NONE;
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${SIZES[unit]}`;
}

/** A duration in its largest unit, or two: `350 ms`, `12 s`, `3 min`, `2 h 5 min`, `4 d`. */
export function duration(ms: number | undefined | null): string {
  if (ms === undefined || ms === null) return NONE;
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1_000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 === 0 ? `${hours} h` : `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d`;
}

/** A time in UTC, as everywhere in Penstock: `2026-11-29 14:05:09`. */
export function time(ms: number | undefined | null): string {
  if (ms === undefined || ms === null || !Number.isFinite(ms)) return NONE;
  return new Date(ms).toISOString().slice(0, 19).replace("T", " ");
}

/** The end of all time, which no date of a browser has in four digits. */
const END = "10000-01-01T00:00:00.000Z";
const END_MS = 253_402_300_800_000;

/** Returns an ISO time as epoch ms. */
export function instant(text: string): number {
  return text === END ? END_MS : Date.parse(text);
}

/** Returns epoch ms as an ISO time. */
export function iso(at: number): string {
  return at >= END_MS ? END : new Date(at).toISOString();
}

/** A time without the parts that are zero: `2026-11-29`, `2026-11-29 14:05`. */
export function shortTime(at: number): string {
  if (at >= END_MS) return "10000-01-01";
  return time(at).replace(/(:00)$/, "").replace(/ 00:00$/, "");
}

/** An interval in as few characters as its ends need; one without dates as it is. */
export function intervalText(interval: string): string {
  const ends = interval.split("/", 2).map(instant);
  return ends.some(Number.isNaN) ? interval : ends.map(shortTime).join(" to ");
}

/** How long ago a time of the server is. */
export function ago(ms: number | undefined | null): string {
  if (ms === undefined || ms === null || !Number.isFinite(ms)) return NONE;
  const ageMs = serverNow() - ms;
  return ageMs < -CLOCKS_AGREE_MS ? "in the future" : `${duration(Math.max(0, ageMs))} ago`;
}
