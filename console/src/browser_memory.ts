// What the console keeps in the browser: it is that of a principal, so a logout forgets it (`session.ts`).
//
// A browser may keep nothing, or be full: then a page begins anew each time.

/** Pages of this browser share `browser`; `tab` lasts as long as the tab, also over reloads. */
export type Keeper = "browser" | "tab";

const PREFIX = "penstock";

let isForgotten = false;

const storeOf = (keeper: Keeper): Storage => (keeper === "browser" ? localStorage : sessionStorage);

/** Returns what is kept under a name, which may have the form of another release; null: nothing. */
export function kept(name: string, keeper: Keeper = "browser"): unknown {
  try {
    return JSON.parse(storeOf(keeper).getItem(`${PREFIX}-${name}`) ?? "null");
  } catch {
    return null;
  }
}

/** Keeps a value of JSON under a name. */
export function keep(name: string, value: unknown, keeper: Keeper = "browser"): void {
  if (isForgotten) return;
  try {
    storeOf(keeper).setItem(`${PREFIX}-${name}`, JSON.stringify(value));
  } catch {
    // as above
  }
}

// A logout on another page forgets what is kept: this page is of the former principal, too, until it is loaded again.
window.addEventListener("storage", ({ key, newValue }) => {
  if (newValue === null && key?.startsWith(`${PREFIX}-`)) isForgotten = true;
});

/** Calls a function when another page of this browser has kept a value under a name; not when it was forgotten. */
export function onKept(name: string, changed: () => void): void {
  window.addEventListener("storage", ({ key, newValue }) => {
    if (key === `${PREFIX}-${name}` && newValue !== null) changed();
  });
}

/** Forgets everything but these names, and keeps nothing until the page is loaded again. */
export function forget(others: string[]): void {
  isForgotten = true;
  const left = new Set(others.map((name) => `${PREFIX}-${name}`));
  for (const keeper of ["browser", "tab"] as const) {
    try {
      const store = storeOf(keeper);
      for (const name of Object.keys(store)) if (name.startsWith(PREFIX) && !left.has(name)) store.removeItem(name);
    } catch {
      // as above
    }
  }
}
