// Start, stop, run once and terminate: for one component, a group, or the whole flow.
import type { JSX } from "preact";

import { Action } from "../actions";
import type { FlowOutcome } from "../answers";
import { call, withParams } from "../api";
import { count, counted } from "../format";

const REFUSED = 3;

/** What a target is doing, as far as it is known: it decides which actions have a meaning. */
export interface Runs {
  canStart: boolean;
  canStop: boolean;
  canTerminate: boolean;
}

export function runsOf(state: string, desired: string): Runs {
  const isStopping = state === "stopping" || (state === "starting" && desired === "stopped");
  return {
    canStart: state === "stopped" || isStopping,
    canStop: state !== "stopped" && state !== "disabled" && !isStopping,
    canTerminate: isStopping,
  };
}

async function send(command: string, target: string | undefined): Promise<string> {
  const found = await call<FlowOutcome>("POST", withParams(`/flow/${command}`, { target }), {});
  const done = found.started ?? found.stopped ?? found.ran ?? found.terminated ?? [];
  const refused = found.refused ?? [];
  const word = { start: "started", stop: "stopped", "run-once": "ran once", terminate: "terminated" }[command];
  const reasons = refused.slice(0, REFUSED).map((one) => one.reason);
  if (refused.length > REFUSED) reasons.push(`and ${count(refused.length - REFUSED)} more`);
  const text = `${counted(done.length, "component")} ${word}`;
  if (reasons.length > 0) throw new Error([text, ...reasons].join(". "));
  return text;
}

/** The buttons. A target is a name or an id; none: everything, now and after each restart. */
export function RunActions({ target, about, runs }: { target?: string; about: string; runs?: Runs }): JSX.Element {
  const one = target ?? "/";
  return (
    <>
      <Action
        label="start"
        about={about}
        disabled={runs !== undefined && !runs.canStart}
        hint="runs now, and again after each restart of Penstock"
        run={() => send("start", target)}
      />
      <Action
        label="stop"
        about={about}
        disabled={runs !== undefined && !runs.canStop}
        hint="waits until current runs have ended"
        run={() => send("stop", target)}
      />
      <Action
        label="run once"
        about={about}
        disabled={runs !== undefined && (!runs.canStart || runs.canTerminate)}
        hint="one run of what is stopped"
        run={() => send("run-once", one)}
      />
      <Action
        label="terminate"
        about={about}
        disabled={runs !== undefined && !runs.canTerminate}
        hint="abandons the threads of what was stopped and does not end"
        confirm={{
          question: `Terminate ${about}?`,
          lost: () => (
            <p>
              Threads that hang are abandoned, and what they have done since their last commit is undone: their
              FlowFiles return to their queues. Files and requests that they have written elsewhere stay.
            </p>
          ),
        }}
        run={() => send("terminate", one)}
      />
    </>
  );
}
