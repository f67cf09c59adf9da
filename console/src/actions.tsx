// Buttons that change something: what is lost is confirmed before, errors are shown beside them.
import { isValidElement, type ComponentChildren, type JSX, type TargetedKeyboardEvent } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { ErrorBox } from "./ui";

/** A question before an action that loses something. */
export interface Confirmation {
  /** The question, as "Delete the topic clicks?". */
  question: string;
  /** What is lost, with names and numbers. It is made when the dialog opens. */
  lost: () => ComponentChildren;
}

interface ActionProps {
  /** What the button does, as a verb: "pause", "delete". */
  label: string;
  /** Sends the request. A text or element that it returns is shown beside the button. Errors are shown there too. */
  run: () => Promise<unknown>;
  /** On what, for those who hear the button without its row: "the query SELECT 1". */
  about?: string;
  confirm?: Confirmation;
  disabled?: boolean;
  /** Why the button is disabled, or more about what it does. */
  hint?: string;
}

/** A button with the progress, the result and the error of its request. */
export function Action({ label, run, about, confirm, disabled, hint }: ActionProps): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const [isRunning, setRunning] = useState(false);
  const [result, setResult] = useState<ComponentChildren>();
  const [error, setError] = useState<Error>();
  const hasRun = useRef(false);
  // The row of what was deleted disappears, with the button that had the focus.
  useEffect(
    () => () => {
      if (hasRun.current) window.setTimeout(focusIfLost);
    },
    [],
  );
  const start = async (): Promise<void> => {
    hasRun.current = true;
    setOpen(false);
    setRunning(true);
    setError(undefined);
    setResult(undefined);
    try {
      const found = await run();
      setResult((typeof found === "string" && found !== "") || isValidElement(found) ? found : undefined);
    } catch (failure) {
      setError(failure as Error);
    } finally {
      setRunning(false);
    }
  };
  return (
    <div class="action">
      <button
        type="button"
        class={confirm ? "loses" : undefined}
        disabled={disabled}
        aria-disabled={isRunning || undefined}
        title={hint}
        aria-busy={isRunning}
        aria-label={about && `${label} ${about}`}
        onClick={() => {
          // Not disabled while it runs: that would take the focus from it.
          if (isRunning) return;
          if (confirm) setOpen(true);
          else void start();
        }}
      >
        {label}
      </button>
      {confirm && isOpen && (
        <Dialog question={confirm.question} label={label} onYes={() => void start()} onNo={() => setOpen(false)}>
          {confirm.lost()}
        </Dialog>
      )}
      <span role="status">{result}</span>
      {error && <ErrorBox error={error} />}
    </div>
  );
}

/** Presses the button of a bar when Enter is pressed in one of its fields. */
export function pressOnEnter(event: TargetedKeyboardEvent<HTMLElement>): void {
  if (event.key !== "Enter" || event.isComposing || !(event.target instanceof HTMLInputElement)) return;
  event.currentTarget.querySelector<HTMLButtonElement>("button:enabled")?.click();
}

/** Moves the focus to the page if what had it is no longer there. */
export function focusIfLost(): void {
  const { activeElement } = document;
  if (activeElement === null || activeElement === document.body)
    document.getElementById("main")?.focus({ preventScroll: true });
}

function Dialog({
  question,
  label,
  onYes,
  onNo,
  children,
}: {
  question: string;
  label: string;
  onYes: () => void;
  onNo: () => void;
  children: ComponentChildren;
}): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const title = useId();
  useEffect(() => dialog.current?.showModal(), []);
  // Closing it gives the focus back to the button that opened it.
  const close = (answer: string): void => dialog.current?.close(answer);
  return (
    <dialog
      ref={dialog}
      aria-labelledby={title}
      onClose={(event) => (event.currentTarget.returnValue === "yes" ? onYes() : onNo())}
    >
      <h2 id={title}>{question}</h2>
      {children}
      <p class="bar">
        <button type="button" onClick={() => close("no")}>
          cancel
        </button>
        <button type="button" class="loses" onClick={() => close("yes")}>
          {label}
        </button>
      </p>
    </dialog>
  );
}
