// The frame of every page: navigation, whether the answers are live, the theme.
import { Component, type ComponentChildren, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { focusIfLost } from "./actions";
import { connection } from "./live";
import { ManualLink } from "./manual";
import { link, place } from "./router";
import { askWho, logOut, me, mustLogIn } from "./session";
import { nextTheme, theme } from "./theme";
import { ErrorBox, LogInHint, State, type Tone } from "./ui";

export interface Page {
  path: string;
  title: string;
  /** The page that leads to it, which the navigation shows instead. */
  under?: string;
  render: (parts: string[]) => ComponentChildren;
}

const CONNECTIONS: Record<typeof connection.value, [Tone, string]> = {
  idle: ["idle", "no live numbers"],
  connecting: ["busy", "connecting"],
  open: ["good", "live"],
  lost: ["bad", "no answer, trying again"],
};

export function Shell({ pages }: { pages: Page[] }): JSX.Element {
  const [name = "", ...parts] = place.value.parts;
  const page = pages.find((one) => one.path === name);
  const shown = page?.under ?? page?.path;
  const current = useRef<HTMLAnchorElement>(null);
  // On a narrow screen, the navigation is one row that scrolls.
  useEffect(() => current.current?.scrollIntoView({ block: "nearest", inline: "nearest" }), [shown]);
  const [tone, text] = CONNECTIONS[connection.value];
  const [failure, setFailure] = useState<Error>();
  useEffect(() => void askWho(), []);
  // The link that led here may have disappeared with its page.
  const here = place.value.parts.join("/");
  const before = useRef(here);
  useEffect(() => {
    if (before.current !== here) focusIfLost();
    before.current = here;
  }, [here]);
  document.title = [...parts.slice(0, 1), page?.title ?? "Not found", "Penstock"].join(" · ");
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => focusMain(event)}>
        skip to the content
      </a>
      <header class="top">
        <a class="brand" href={link([])}>
          <img src="console/icon.svg" alt="" width="24" height="24" /> Penstock
        </a>
        <nav aria-label="pages">
          {pages.filter(isInNavigation).map((one) => (
            <a
              key={one.path}
              {...(one.path === shown ? { ref: current } : {})}
              href={link(one.path === "" ? [] : [one.path])}
              aria-current={one === page ? "page" : one.path === shown ? "true" : undefined}
            >
              {one.title}
            </a>
          ))}
          <ManualLink path="docs/" onError={setFailure}>Manual</ManualLink>
        </nav>
        <span class="connection" role="status">
          {mustLogIn.value ? <State tone="warn">not logged in</State> : <State tone={tone}>{text}</State>}
        </span>
        {me.value && (
          <span class="who" title={`the rights of ${me.value.principal}`}>
            {me.value.principal}
          </span>
        )}
        {me.value?.isSession && (
          <button type="button" onClick={() => void logOut().then(() => setFailure(undefined), setFailure)}>
            log out
          </button>
        )}
        <button type="button" onClick={nextTheme} aria-label={`theme: ${theme.value}; change it`}>
          {theme.value}
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        {failure && <ErrorBox error={failure} />}
        {mustLogIn.value && (
          <div class="error" role="alert">
            <LogInHint />
          </div>
        )}
        {page === undefined ? (
          <>
            <h1>There is no page {place.value.parts.join("/")}</h1>
            <a href={link([])}>Home</a>
          </>
        ) : (
          <Guarded key={here}>{page.render(parts)}</Guarded>
        )}
      </main>
    </>
  );
}

/** A page, or why it cannot be drawn: the rest of the console works on. */
class Guarded extends Component<{ children: ComponentChildren }, { error?: Error }> {
  static override getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  override componentDidCatch(error: Error): void {
    console.error(error); // with its place, for those who report it
  }

  override render(): ComponentChildren {
    const { error } = this.state;
    if (error === undefined) return this.props.children;
    const text = `the page cannot show an answer of the server (${error.message}): load the page again`;
    return <ErrorBox error={new Error(text)} />;
  }
}

const isInNavigation = (page: Page): boolean => page.under === undefined;

function focusMain(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}
