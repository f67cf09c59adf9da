// What the SQL page remembers in this browser: its tabs, and the statements that ran.

export interface Tab {
  id: string;
  text: string;
}

export interface Tabs {
  tabs: Tab[];
  active: string;
}

export interface Ran {
  text: string;
  /** Time in ms. */
  at: number;
}

const TABS_KEY = "penstock-sql-tabs";
const HISTORY_KEY = "penstock-sql-history";
export const TABS_MAX = 20;
const HISTORY_MAX = 200;
/** Longer statements are not remembered: a browser keeps about five million characters. */
const KEPT_CHARACTERS_MAX = 20_000;
const FIRST = "SHOW TABLES";

function stored(key: string): unknown {
  try {
    return JSON.parse(localStorage.getItem(key) ?? "null");
  } catch {
    return null;
  }
}

function store(key: string, value: unknown): void {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // a browser that keeps nothing, or is full
  }
}

function isRan(one: unknown): one is Ran {
  return typeof one === "object" && one !== null && typeof (one as Ran).text === "string";
}

/** The statements that ran, the newest first. */
export function history(): Ran[] {
  const found = stored(HISTORY_KEY);
  if (!Array.isArray(found)) return [];
  // Earlier releases kept only the text.
  const entries = found.map((one: unknown) => (typeof one === "string" ? { text: one, at: 0 } : one));
  return entries.filter(isRan).slice(0, HISTORY_MAX);
}

export function remember(text: string): void {
  if (text.length > KEPT_CHARACTERS_MAX) return;
  const others = history().filter((one) => one.text !== text);
  store(HISTORY_KEY, [{ text, at: Date.now() }, ...others].slice(0, HISTORY_MAX));
}

export function forgetHistory(): void {
  store(HISTORY_KEY, []);
}

function newTab(text: string): Tab {
  return { id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, text };
}

/** The tabs of the last visit, with one for the statement of the address. */
export function firstTabs(query: string | null): Tabs {
  const found = stored(TABS_KEY) as { tabs?: unknown; active?: unknown } | null;
  const tabs = (Array.isArray(found?.tabs) ? found.tabs : [])
    .filter((one): one is Tab => isRan(one) && typeof (one as unknown as Tab).id === "string")
    .slice(0, TABS_MAX);
  if (query === null || query === "") {
    const active = tabs.find((one) => one.id === found?.active) ?? tabs[0];
    if (active !== undefined) return { tabs, active: active.id };
    return opened({ tabs: [], active: "" }, FIRST);
  }
  const same = tabs.find((one) => one.text === query);
  return same === undefined ? opened({ tabs, active: "" }, query) : { tabs, active: same.id };
}

/** A new tab, which replaces the oldest one if there are very many. */
export function opened(tabs: Tabs, text: string): Tabs {
  const added = newTab(text);
  return { tabs: [...tabs.tabs, added].slice(-TABS_MAX), active: added.id };
}

export function closed(tabs: Tabs, id: string): Tabs {
  const at = tabs.tabs.findIndex((one) => one.id === id);
  const rest = tabs.tabs.filter((one) => one.id !== id);
  const next = rest[Math.min(at, rest.length - 1)];
  return next === undefined ? opened({ tabs: [], active: "" }, "") : { tabs: rest, active: next.id };
}

export function edited(tabs: Tabs, id: string, text: string): Tabs {
  return { ...tabs, tabs: tabs.tabs.map((one) => (one.id === id ? { id, text } : one)) };
}

export function keepTabs({ tabs, active }: Tabs): void {
  const kept = tabs.map((one) => (one.text.length > KEPT_CHARACTERS_MAX ? { ...one, text: "" } : one));
  store(TABS_KEY, { tabs: kept, active });
}
