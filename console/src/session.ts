// Whose rights this browser has, and whether it must log in.
import { signal } from "@preact/signals";

import { ApiError, call, get } from "./api";
import { forget } from "./browser_memory";
import { link } from "./router";
import { THEME } from "./theme";

export interface Me {
  principal: string;
  kind: string;
  name: string;
  /** Whether the rights come from a login of this browser, which can be ended. */
  isSession: boolean;
  isLoginNeeded: boolean;
}

export const me = signal<Me | null>(null);
export const mustLogIn = signal(false);

/** Asks for the principal, and returns whether the server answers this browser. */
export async function askWho(): Promise<boolean> {
  try {
    me.value = await get<Me>("/penstock/v1/me");
    mustLogIn.value = false;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 0) return false;
    me.value = null;
    mustLogIn.value = error.status === 401;
  }
  return !mustLogIn.value;
}

/** Ends the login of this browser, forgets what it did, and begins anew. Throws ApiError. */
export async function logOut(): Promise<void> {
  await call("POST", "/logout");
  forget([THEME]);
  history.replaceState(null, "", link([])); // the address may have a statement
  location.reload(); // no number of the former principal stays
}
