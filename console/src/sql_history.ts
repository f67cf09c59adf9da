// What the SQL page remembers in this browser: its tabs, and the statements that ran.
import { serverNow } from "./api";
import { keep, kept, onKept } from "./browser_memory";

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

const TABS = "sql-tabs";
const HISTORY = "sql-history";
export const TABS_MAX = 20;
const CLOSED_MAX = 100;
const HISTORY_MAX = 200;
/** Longer statements are not remembered: a browser keeps about five million characters. */
const KEPT_CHARACTERS_MAX = 20_000;
const FIRST = "SHOW TABLES";

function isRan(one: unknown): one is Ran {
  return typeof one === "object" && one !== null && typeof (one as Ran).text === "string";
}

/** The statements that ran, the newest first. */
export function history(): Ran[] {
  const found = kept(HISTORY);
  if (!Array.isArray(found)) return [];
  return found.filter(isRan).slice(0, HISTORY_MAX);
}

export function remember(text: string): void {
  if (text.trim() === "" || text.length > KEPT_CHARACTERS_MAX) return;
  const others = history().filter((one) => one.text !== text);
  keep(HISTORY, [{ text, at: serverNow() }, ...others].slice(0, HISTORY_MAX));
}

export function forgetHistory(): void {
  keep(HISTORY, []);
}

function newTab(text: string): Tab {
  return { id: `${Date.now()}-${Math.random().toString(36).slice(2)}`, text };
}

/** What this page has read or written last, by the ids of tabs: what differs from that is of another page. */
let own = new Map<string, string>();
/** New ids of tabs that another page has changed, too. */
const renamed = new Map<string, string>();

/** What this page has kept last. */
let last: Tabs | undefined;

function storedTabs(): { tabs: Tab[]; active: unknown; closed: unknown[] } {
  const found = kept(TABS) as { tabs?: unknown; active?: unknown; closed?: unknown } | null;
  const tabs = (Array.isArray(found?.tabs) ? found.tabs : [])
    .filter((one): one is Tab => isRan(one) && typeof (one as unknown as Tab).id === "string")
    .slice(0, TABS_MAX);
  return { tabs, active: found?.active, closed: Array.isArray(found?.closed) ? found.closed : [] };
}

/** The tabs of the last visit, with one for the statement of the address. */
export function firstTabs(query: string | null): Tabs {
  const found = storedTabs();
  const { tabs } = found;
  own = new Map(tabs.map(({ id, text }) => [id, text]));
  renamed.clear();
  last = undefined;
  if (query === null || query === "") {
    const active = tabs.find((one) => one.id === found.active) ?? tabs[0];
    if (active !== undefined) return { tabs, active: active.id };
    return opened({ tabs: [], active: "" }, FIRST);
  }
  return withStatement({ tabs, active: "" }, query);
}

/** Opens the tab with a statement, or a new one. */
export function withStatement({ tabs, active }: Tabs, text: string): Tabs {
  const same = tabs.find((one) => one.text === text);
  return same === undefined ? opened({ tabs, active }, text) : { tabs, active: same.id };
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

/** Keeps the tabs beside those of other pages: of a tab that two have changed, both texts are kept. */
export function keepTabs(shown: Tabs, isAgain = false): void {
  last = shown;
  const { tabs: stored, active, closed } = storedTabs();
  const next = new Map<string, string>();
  const added: Tab[] = [];
  for (const tab of shown.tabs) {
    const text = tab.text.length > KEPT_CHARACTERS_MAX ? "" : tab.text;
    let id = renamed.get(tab.id) ?? tab.id;
    const other = stored.find((one) => one.id === id);
    const before = own.get(id);
    if (other === undefined) {
      if (text !== before || !closed.includes(id)) added.push({ id, text });
    } else if (text !== before && [before, text].includes(other.text)) other.text = text;
    else if (text !== before) {
      renamed.set(tab.id, (id = newTab("").id));
      added.push({ id, text });
    }
    next.set(id, text);
  }
  // What this page has closed goes, unless another one has changed it.
  const left = stored.filter(({ id, text }) => next.has(id) || own.get(id) !== text);
  const all = [...left, ...added];
  const tabs = all.slice(-TABS_MAX);
  const gone = [...stored, ...all].filter((one) => !tabs.includes(one));
  for (const { text } of all.slice(0, -TABS_MAX)) remember(text);
  keep(TABS, {
    tabs,
    active: isAgain ? active : (renamed.get(shown.active) ?? shown.active),
    closed: [...closed, ...gone.map(({ id }) => id)].slice(-CLOSED_MAX),
  });
  own = next;
}

// Two pages may keep their tabs at once: the first one sees that the second one has not had its tabs, and adds them.
onKept(TABS, () => last && keepTabs(last, true));
