// Light or dark: as the system says, unless the user has chosen.
import { computed, effect, signal } from "@preact/signals";

import { keep, kept } from "./browser_memory";

export type Theme = "system" | "light" | "dark";

export const THEME = "theme";
const THEMES: Theme[] = ["system", "light", "dark"];

export const theme = signal<Theme>(THEMES.find((one) => one === kept(THEME)) ?? "system");

const query = window.matchMedia("(prefers-color-scheme: dark)");
const isSystemDark = signal(query.matches);
query.addEventListener("change", () => {
  isSystemDark.value = query.matches;
});

/** Whether the page is dark, for what is drawn with colours instead of styles. */
export const isDark = computed(() => (theme.value === "system" ? isSystemDark.value : theme.value === "dark"));

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
  keep(THEME, theme.value);
});

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "system";
}
