// The YAML of the flow: checked by the server as it is typed, with the difference to what runs.
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { Action } from "../actions";
import type { FlowChange, FlowChanges, FlowProblem, FlowSummary } from "../answers";
import { ApiError, call, check, get, withParams } from "../api";
import { count, counted, size } from "../format";
import { Newest, useNewest } from "../newest";
import { Card, ErrorBox, State } from "../ui";
import type { YamlEditor } from "../yaml_editor";
import { linkTo } from "./flow_view";

const REST_MS = 400;
const REST_MS_OF_CHARACTER = 0.002; // a flow of 10,000 processors takes a second to check
const LISTED = 200;
const PROBLEMS = 50;
const YAML = "application/yaml";

/** What is edited: it stays while other pages are shown. */
interface Draft {
  text: string;
  /** As it was loaded, to know whether it was changed. */
  loaded: string;
  /** The revision on which it is based. */
  revision: number;
}

const draft = signal<Draft | null>(null);

/** What the server found in the text. */
interface Found {
  changes?: FlowChanges;
  problems?: FlowProblem[];
  error?: Error;
}

// The draft outlives the card, so that its requests do, too.
const loading = new Newest();

/** Sets the draft to what runs. Throws ApiError. */
async function load(): Promise<void> {
  const signal = loading.begin();
  // The revision first: if the flow is changed in between, applying is refused, and nothing is lost.
  const { revision } = await get<FlowSummary>(withParams("/flow/status", { summary: true, max: 0 }), signal);
  const text = await get<string>(withParams("/flow", { format: "yaml" }), signal);
  if (!signal.aborted) draft.value = { text, loaded: text, revision };
}

/** Whether nothing is edited, and the text is not what runs. */
function isStale(known: Draft | null, revision: number): boolean {
  return known === null || (known.text === known.loaded && known.revision < revision);
}

function foundIn(error: unknown): Found {
  if (error instanceof ApiError && error.body !== null && typeof error.body === "object") {
    const { problems } = error.body as { problems?: FlowProblem[] };
    if (problems && problems.length > 0) return { problems };
  }
  return { error: error as Error };
}

export function YamlCard({ revision, name }: { revision: number; name: string }): JSX.Element {
  const host = useRef<HTMLDivElement>(null);
  const editor = useRef<YamlEditor | null>(null);
  const [found, setFound] = useState<Found>({});
  const [isChecking, setChecking] = useState(false);
  const [failure, setFailure] = useState<Error>();
  const timer = useRef<number | undefined>(undefined);
  const checking = useNewest();

  const checkText = async (text: string): Promise<void> => {
    const checked = (next: Found): void => {
      setChecking(false);
      setFound(next);
      editor.current?.setProblems(next.problems ?? []);
    };
    setChecking(true);
    await checking.ask(
      (signal) => check<FlowChanges>("PUT", "/flow", { dryRun: true, file: "flow.yaml" }, signal, text, YAML),
      (changes) => checked({ changes }),
      (error) => checked(foundIn(error)),
    );
  };
  const changed = (text: string): void => {
    if (draft.value !== null) draft.value = { ...draft.value, text };
    // At once: what was found is not about this text, which must not be applied unseen.
    setChecking(true);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => void checkText(text), REST_MS + text.length * REST_MS_OF_CHARACTER);
  };

  useEffect(() => {
    let isShown = true;
    async function open(): Promise<void> {
      const [{ makeYamlEditor }] = await Promise.all([
        import("../editors"),
        isStale(draft.value, revision) ? load() : undefined,
      ]);
      if (!isShown || host.current === null || draft.value === null) return;
      editor.current = makeYamlEditor(host.current, draft.value.text, changed);
      void checkText(draft.value.text);
    }
    open().catch((error: Error) => {
      if (isShown) setFailure(error);
    });
    return () => {
      isShown = false;
      window.clearTimeout(timer.current);
      editor.current?.destroy();
      editor.current = null;
    };
  }, []);
  // What runs has changed, so the difference has, too.
  useEffect(() => {
    if (draft.value !== null && editor.current !== null) void checkText(draft.value.text);
  }, [revision]);

  const edited = draft.value;
  const isChanged = edited !== null && edited.text !== edited.loaded;
  const isOutdated = edited !== null && revision > edited.revision;
  const reload = async (): Promise<string> => {
    await load();
    if (draft.value !== null) editor.current?.setText(draft.value.text);
    return "this is what runs";
  };
  const apply = async (): Promise<string> => {
    if (edited === null) return "";
    try {
      const path = withParams("/flow", { revision: edited.revision, file: "flow.yaml" });
      const done = await call<FlowChanges>("PUT", path, edited.text, undefined, YAML);
      // What was written while the answer was awaited stays.
      const { text } = draft.value ?? edited;
      draft.value = { text, loaded: edited.text, revision: done.revision };
      void checkText(text);
      return `applied as revision ${done.revision}`;
    } catch (error) {
      const { problems } = foundIn(error);
      if (problems === undefined) throw error;
      setFound({ problems });
      editor.current?.setProblems(problems);
      throw new Error("it was not applied: correct the problems below");
    }
  };
  const changes = found.changes?.changes ?? [];
  const isSame = changes.length === 0 && !found.changes?.commentsChanged;
  const waiting = changes.filter((one) => one.queued > 0);
  return (
    <Card title={`YAML of ${name}`} wide>
      {failure && <ErrorBox error={failure} />}
      {isOutdated && (
        <div class="error" role="alert">
          Somebody has changed the flow: revision {revision} runs, and this text is based on revision{" "}
          {edited.revision}. Applying it is refused. The difference below is that to what runs now.
          <p class="bar">
            <Action
              label="go on with mine"
              hint="applying it then undoes the other change where the difference shows it"
              run={async () => {
                draft.value = { ...edited, revision };
                return "";
              }}
            />
          </p>
        </div>
      )}
      <div class="editor" ref={host} />
      <div class="bar">
        <Action
          label="apply"
          about="the YAML"
          disabled={found.changes === undefined || isChecking || isSame}
          hint={isSame ? "there is no difference to what runs" : "changes the flow that runs"}
          confirm={{
            question:
              changes.length === 0
                ? "Store the comments of the flow?"
                : `Apply ${counted(changes.length, "change")} to the flow?`,
            lost: () => <Lost changes={changes} found={found} />,
          }}
          run={apply}
        />
        <Action
          label="load what runs"
          disabled={edited === null || (!isChanged && !isOutdated)}
          {...(isChanged
            ? {
                confirm: {
                  question: "Load what runs?",
                  lost: () => <p>What you have written here is replaced.</p>,
                },
              }
            : {})}
          run={reload}
        />
        <span class="quiet">revision {edited?.revision ?? "…"}</span>
        <span role="status">
          {isChecking ? (
            "checking …"
          ) : found.problems ? (
            <State tone="bad">{counted(found.problems.length, "problem")}</State>
          ) : found.changes ? (
            isSame ? (
              <State tone="good">this is what runs</State>
            ) : changes.length === 0 ? (
              <State tone="busy">correct, only comments differ</State>
            ) : (
              <State tone="busy">correct, {counted(changes.length, "difference")} to what runs</State>
            )
          ) : (
            ""
          )}
        </span>
      </div>
      {found.error && <ErrorBox error={found.error} />}
      {found.problems && (
        <ul class="problems" aria-label="problems of the YAML">
          {found.problems.slice(0, PROBLEMS).map((one, index) => (
            <li key={index}>
              <button type="button" onClick={() => editor.current?.goTo(one.line, one.column)}>
                line {one.line}
              </button>{" "}
              {one.path && <code>{one.path}</code>} {one.message}
            </li>
          ))}
          {found.problems.length > PROBLEMS && <li>and {count(found.problems.length - PROBLEMS)} more</li>}
        </ul>
      )}
      {waiting.map((one) => (
        <div key={one.id} class="error">
          {counted(one.queued, "FlowFile")} with {size(one.queuedBytes)} wait in{" "}
          <a href={linkTo({ queue: one.id })}>{one.name}</a>, which this text removes. Let them be processed, or drop
          them; until then, applying it is refused.
        </div>
      ))}
      {changes.length > 0 && <Difference changes={changes} />}
    </Card>
  );
}

function Difference({ changes }: { changes: FlowChange[] }): JSX.Element {
  return (
    <pre class="difference" tabIndex={0} aria-label="difference to what runs">
      {changes.slice(0, LISTED).map((one) => (
        <span key={one.id} class={one.kind}>
          {one.text}
          {"\n"}
        </span>
      ))}
      {changes.length > LISTED && `… and ${count(changes.length - LISTED)} more`}
    </pre>
  );
}

/** What applying a flow removes and stops. */
function Lost({ changes, found }: { changes: FlowChange[]; found: Found }): JSX.Element {
  const removed = changes.filter((one) => one.kind === "removed");
  const added = new Set(changes.filter((one) => one.kind === "added").map((one) => one.id));
  const stopped = new Set(changes.flatMap((one) => one.stops).filter((id) => !added.has(id)));
  const waiting = removed.filter((one) => one.queued > 0);
  const { owner, previousOwner, allRestart } = found.changes ?? {};
  const isTaken = previousOwner && previousOwner !== owner;
  if (changes.length === 0 && !isTaken) return <p>Only comments differ, so nothing stops.</p>;
  return (
    <>
      <p>
        {count(added.size)} added,{" "}
        {count(changes.filter((one) => one.kind === "changed").length)} changed, {count(removed.length)} removed.{" "}
        {stopped.size > 0 &&
          (stopped.size === 1
            ? "If it runs, 1 processor stops for it, and starts again unless it is removed."
            : `If they run, ${count(stopped.size)} processors stop for it, and start again unless they are removed.`)}
      </p>
      {removed.length > 0 && (
        <ul>
          {removed.slice(0, 20).map((one) => (
            <li key={one.id}>
              removes the {one.component} {one.name}
              {one.queued > 0 && `, in which ${counted(one.queued, "FlowFile")} with ${size(one.queuedBytes)} wait`}
            </li>
          ))}
          {removed.length > 20 && <li>and {count(removed.length - 20)} more</li>}
        </ul>
      )}
      {removed.some((one) => one.component === "processor") && (
        <p>The state of removed processors, such as their places in files, is lost.</p>
      )}
      {waiting.length > 0 && <p>Connections with FlowFiles cannot be removed: this is going to be refused.</p>}
      {isTaken && (
        <p>
          The flow acts for {owner} instead of {previousOwner}
          {allRestart
            ? ": all its processors restart."
            : ". Both may do everything, so that unchanged processors continue to run."}
        </p>
      )}
    </>
  );
}
