// Links to the manual, which some installations do not have.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";

import { get } from "./api";
import { ErrorBox } from "./ui";

/** A link to a page of the manual. Without one, it stays here and says so: beside it, or through `onError`. */
export function ManualLink({
  path,
  onError,
  children,
}: {
  path: string;
  onError?: (error: Error) => void;
  children: ComponentChildren;
}): JSX.Element {
  const [error, setError] = useState<Error>();
  function follow(event: MouseEvent): void {
    // Another tab, or the menu of the browser: the answer opens there.
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    get(path).then(() => location.assign(new URL(path, document.baseURI)), onError ?? setError);
  }
  return (
    <>
      <a href={path} onClick={follow}>
        {children}
      </a>
      {error && <ErrorBox error={error} />}
    </>
  );
}
