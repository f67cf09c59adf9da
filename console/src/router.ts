// The place of the page is the part of the address after `#`: it works below any path of a proxy,
// and needs nothing from the server.
import { computed, signal } from "@preact/signals";

export interface Place {
  /** The parts of the path, decoded: `#/topics/clicks` has `["topics", "clicks"]`. */
  parts: string[];
  params: URLSearchParams;
}

function read(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = path.split("/").filter((part) => part !== "");
  return { parts: parts.map(decoded), params: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

const hash = signal(location.hash);
window.addEventListener("hashchange", () => {
  hash.value = location.hash;
});

export const place = computed(() => read(hash.value));

/** Returns the address of a place, for links. */
export function link(parts: string[], params: Record<string, string | undefined> = {}): string {
  const query = Object.entries(params)
    .filter((one): one is [string, string] => one[1] !== undefined && one[1] !== "")
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  const path = parts.map((part) => encodeURIComponent(part)).join("/");
  return `#/${path}${query.length > 0 ? `?${query.join("&")}` : ""}`;
}

/** Changes parameters of the current place, without a new entry in the browser's history. */
export function setParams(changes: Record<string, string | undefined>): void {
  const params = Object.fromEntries(place.value.params);
  const address = link(place.value.parts, { ...params, ...changes });
  history.replaceState(null, "", address);
  hash.value = address;
}
