"""Statistics of components and of the scheduler: immutable snapshots."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.flow.scheduling.component_lifecycle import ComponentState, Desired


class ComponentStatistics(msgspec.Struct, frozen=True, gc=False):
    """Statistics of one component.

    A struct, because the scheduler's thread may create ten thousand at once: a frozen dataclass
    with this many fields takes several times as long.

    Attributes:
        id: Id of the component.
        state: State in the lifecycle.
        desired: Desired state.
        active_tasks: Threads that are in it now, in a run or in a lifecycle method. Checks for work
            do not count.
        terminated_tasks: Abandoned threads that have not returned.
        runs: Runs that ended, since it was added.
        idle_runs: Runs among those that did nothing.
        failures: Runs among those that raised.
        run_ns: Total duration of the runs, in nanoseconds.
        longest_active_ms: Duration of the oldest current run; 0 if there is none.
        last_fired_ms: CRON driven: the firing time handled last, epoch ms.
        served_ms: CRON driven and running: time up to which firing times are handled, epoch ms;
            several missed ones are handled together.
        next_firing_ms: When it runs next, if it has work then, epoch ms; None: when work arrives,
            or never.
        yielded_until_ms: End of its yield, epoch ms; None if it does not yield.
        waits_for: Reason why it does not run: work, room, a thread, or nothing.
        problems: Reasons why it could not be started.
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
    """Statistics of the scheduler.

    Attributes:
        threads: Maximum number of concurrent runs.
        busy_threads: Threads that are in use.
        terminated_threads: Abandoned threads, of any component, that have not returned.
        ready: Components that are ready and wait for a thread.
        components: All components, or the requested ones.
    """

    threads: int
    busy_threads: int
    terminated_threads: int
    ready: int
    components: tuple[ComponentStatistics, ...]
