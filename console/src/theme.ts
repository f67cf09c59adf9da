// Light or dark: as the system says, unless the user has chosen.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "penstock-theme";
const THEMES: Theme[] = ["system", "light", "dark"];

function stored(): Theme {
  try {
    return THEMES.find((one) => one === localStorage.getItem(KEY)) ?? "system";
  } catch {
    return "system"; // a browser that keeps nothing
  }
}

export const theme = signal<Theme>(stored());

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
  try {
    localStorage.setItem(KEY, theme.value);
  } catch {
    // as above
  }
});

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "system";
}
