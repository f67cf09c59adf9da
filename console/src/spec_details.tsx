// The spec of a supervisor or a lookup, for those who want to see it.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { get } from "./api";
import { count } from "./format";
import { useAsked } from "./newest";
import { ErrorBox } from "./ui";

const CHARACTERS_MAX = 50_000;

/** A spec as JSON, which is asked for when it is opened, and again for each version of it. */
export function SpecDetails({
  path,
  version = 0,
  specOf = (answer) => answer,
}: {
  path: string;
  version?: number;
  /** The spec in the answer of the path. */
  specOf?: (answer: unknown) => unknown;
}): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const { value, error } = useAsked<unknown>(isOpen ? `${path} ${version}` : undefined, (signal) => get(path, signal));
  const text = value === undefined ? undefined : JSON.stringify(specOf(value), null, 2);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>show the spec as JSON; secrets are masked</summary>
      {error && <ErrorBox error={error} />}
      {text !== undefined && (
        <pre class="log" tabIndex={0}>
          {text.slice(0, CHARACTERS_MAX)}
          {text.length > CHARACTERS_MAX && `\n… ${count(text.length)} characters`}
        </pre>
      )}
    </details>
  );
}
