"""What is known of a component's runs, and of the scheduler as a whole: immutable snapshots."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.flow.scheduling.lifecycle import ComponentState, Desired


class ComponentStatistics(msgspec.Struct, frozen=True, gc=False):
    """One component.

    A struct, as they are made on the scheduler's thread, ten thousand at once: a frozen dataclass
    of so many fields takes several times as long.

    Attributes:
        id: Of the component.
        state: Where it is in its life.
        desired: Where it is to go.
        active_tasks: Threads in it now, in a run or in its life cycle's methods. A check for work
            is none.
        terminated_tasks: Threads that were given up and have not come back.
        runs: Runs that ended, since it was added.
        idle_runs: Of these, those that did nothing.
        failures: Of these, those that raised.
        run_ns: Time that the runs took together, in nanoseconds.
        longest_active_ms: For how long the oldest run under way goes on; 0: none does.
        last_fired_ms: CRON driven: the firing time served last, epoch ms.
        served_ms: CRON driven and running: up to when firing times are done with, epoch ms; several
            that were missed are done with together.
        next_firing_ms: When it runs next, if it has work then, epoch ms; None: when work comes, or
            never.
        yielded_until_ms: It is left alone until then, epoch ms; None: it is not.
        waits_for: What keeps it from running, in a word: work, room, a thread, or nothing.
        problems: Why it could not be started.
    """

    id: str
    state: ComponentState
    desired: Desired
    active_tasks: int
    terminated_tasks: int
    runs: int
    idle_runs: int
    failures: int
    run_ns: int
    longest_active_ms: int
    last_fired_ms: int | None
    served_ms: int | None
    next_firing_ms: int | None
    yielded_until_ms: int | None
    waits_for: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """The scheduler as a whole.

    Attributes:
        threads: Threads that runs may take at once.
        busy_threads: Those that are taken.
        terminated_threads: Threads given up, of any component, that have not come back.
        ready: Components that could run and wait for a thread.
        components: Each of them, or those that were asked for.
    """

    threads: int
    busy_threads: int
    terminated_threads: int
    ready: int
    components: tuple[ComponentStatistics, ...]
