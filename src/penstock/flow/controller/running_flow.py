"""The running flow, and the commands that change it.

Owns the applied flow, which of its components should run, and the order of steps in each command.
Does not own threads, files, scheduling or queues, which `controller` combines.

Invariants:

- Unchanged components keep running while a change is applied. Components that must stop are stopped
  before the change and started after it.
- A change is stored durably before it takes effect, and a refused change has no effect. A stop is
  the only command that takes effect even if it cannot be stored.
- If a stored change fails while it takes effect, `apply` raises an exception that ends the control
  thread, and the next start completes the change.
- A connection that contains FlowFiles is never removed.
- Held components, which a start of the process left stopped, run again after a command to start
  them or a change of the flow. Holding a component does not change its stored state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import Closed, Conflict, PenstockError
from penstock.flow.controller.applied_flow import AppliedFlow, AppliedFlowFile, WantedStates
from penstock.flow.controller.bulletins import BulletinBoard, levels_of, names_of
from penstock.flow.controller.request_waits import answer
from penstock.flow.graph.diff import ChangeKind, FlowChange, diff
from penstock.flow.graph.flow_comments import NO_COMMENTS, FlowComments
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.flow_model import Flow
from penstock.flow.scheduling.component_lifecycle import ComponentState

if TYPE_CHECKING:
    from penstock.flow.controller.components import FlowComponents
    from penstock.flow.controller.cron_progress import CronProgress
    from penstock.flow.controller.plans import FlowPlanner
    from penstock.flow.graph.source_locations import SourceLocations
    from penstock.flow.scheduling.scheduler import Scheduler

_logger = logging.getLogger(__name__)


class StartGuard(Protocol):
    """Decides at the start of the process whether the components that should run are started."""

    def may_start(self) -> bool:
        """Return whether they are started now. Called once, when nothing else can fail."""
        ...

    def released(self) -> None:
        """Record that held components are about to be started. Must not raise."""
        ...


class RunningFlow:
    """Running flow. Its commands run one after the other, on the controller's thread.

    Args:
        file: Stores the applied flow durably.
        planner: Makes plans of flows.
        scheduler: Runs the components.
        parts: Components and connections.
        cron_progress: Handled firing times of CRON driven components.
        bulletins: Receives names and levels of components.
        stop_limit_s: How long a change waits for components to stop.
        guard: Decides whether components are started with the process; None: they are.

    Attributes:
        applied: The applied flow, and which components should run; read from any thread.
        held: Ids of the components that should run, but are held; read from any thread.
    """

    def __init__(
        self,
        file: AppliedFlowFile,
        planner: FlowPlanner,
        scheduler: Scheduler,
        parts: FlowComponents,
        cron_progress: CronProgress,
        bulletins: BulletinBoard,
        stop_limit_s: float,
        guard: StartGuard | None = None,
    ) -> None:
        self.applied = AppliedFlow(Flow(name="flow"))
        self._file = file
        self.held: frozenset[str] = frozenset()
        self._guard = guard
        self._holds = False  # the guard has not been notified yet that they start again
        self._planner = planner
        self._scheduler = scheduler
        self._parts = parts
        self._cron_progress = cron_progress
        self._bulletins = bulletins
        self._stop_limit_s = stop_limit_s

    def diff(self, flow: Flow) -> Sequence[FlowChange]:
        """Return what `apply` would change; may be called from any thread."""
        return diff(_base(self.applied, flow), flow)

    def restore(self, kept: AppliedFlow) -> None:
        """Restore the flow that was applied before this start.

        A component whose parameter or class is missing does not start and reports the error; all
        others continue.
        """
        plans = self._planner.plans(FlowIndex.of(kept.flow))
        for problem in plans.problems:
            _logger.error("after the restart: %s", problem)
        self._cron_progress.forget(one for one in plans.schedules if not kept.wanted.runs(one))
        self._update_bulletins(plans.index)
        self._parts.owner.take(kept.owner, plans.index)
        self._parts.change(plans, set())
        self.applied = kept
        if self._guard is not None and not self._guard.may_start():
            self.held = frozenset(self._wanted(self._parts.component_ids))
            self._holds = True
        self._start_wanted(self._parts.component_ids)

    def apply(
        self,
        flow: Flow,
        revision: int | None,
        places: SourceLocations | None,
        owner: str = "",
        comments: FlowComments = NO_COMMENTS,
    ) -> Sequence[FlowChange]:
        """Apply a flow; raises as `FlowController.apply`."""
        before = self.applied
        if revision is not None and revision != before.revision:
            raise Conflict(
                f"the flow is at revision {before.revision}, not {revision}, because it was "
                "changed meanwhile: review the change and try again"
            )
        is_taken = bool(before.revision) and owner != before.owner
        if before.revision and flow == before.flow and not is_taken:
            if comments != before.comments:
                commented = replace(before, revision=before.revision + 1, comments=comments)
                self._keep(commented)
                self.applied = commented
            return ()
        changes = diff(_base(before, flow), flow)
        index = FlowIndex.of(flow)
        plans = self._planner.checked(index, places)
        components = frozenset(plans.schedules)
        wanted = before.wanted.only(components)
        after = AppliedFlow(flow, before.revision + 1, wanted, owner, comments)
        self.note_cron_progress()
        concerned = self._concerned(changes, index)
        continues = is_taken and self._parts.owner.may_pass_to(owner)
        if is_taken and not continues:  # they act for their owner until they stop
            concerned |= self._parts.component_ids
        try:
            self.wait_stopped({one: self._scheduler.stop(one) for one in concerned})
            self._parts.refuse_losses(changes)
            self._keep(after)
        except BaseException:
            self._start_wanted(concerned)
            raise
        self.applied = after
        try:
            self._parts.owner.take(owner, index, continues=continues)
            self._cron_progress.forget(self._parts.component_ids - components)
            self._update_bulletins(index)
            self._parts.change(plans, concerned)
        except PenstockError as error:  # narrow: any other exception ends the process already
            if isinstance(error, Closed):
                raise
            # After a PenstockError the control thread would continue with a half-changed flow.
            raise RuntimeError(
                f"flow {flow.name} was stored, but only part of the change was made ({error}): the"
                " process of the flow ends, and its next start completes the change"
            ) from error
        self._release(self.held)
        self._start_wanted(concerned | self._parts.component_ids)
        return changes

    def recheck_owner(self) -> None:
        """Stop processors that the owner may no longer run, and start those that it may again.

        A processor that must not run waits in its start, with the reason, and its FlowFiles stay in
        their queues.
        """
        changed = self._parts.owner.changed() & self._parts.component_ids
        for one in changed:
            self._scheduler.stop(one)
        for one in self._startable(changed):
            self._scheduler.start(one)

    def start(self, target: str | None) -> Sequence[str]:
        """Start components, now and after every restart; raises as `FlowController.start`."""
        ids = self._parts.targets(target)
        if len(ids) == 1 and target is not None and not self._parts.is_enabled(ids[0]):
            raise Conflict(
                f"{self._parts.name_of(ids[0])} is disabled: enable it in the flow first"
            )
        applied = self._with_wanted(ids, target, running=True)
        self._keep(applied)
        self.applied = applied
        self._release(ids)
        self._start_wanted(set(ids))
        return ids

    def stop(self, target: str | None) -> tuple[Mapping[str, Future[None]], Exception | None]:
        """Request components to stop, on this thread, so that later commands do not come first.

        They stop even if the disk is full, because one of them may be filling it.
        """
        ids = self._parts.targets(target)
        failure: Exception | None = None
        applied = self._with_wanted(ids, target, running=False)
        try:
            self._file.save(applied)
        except Exception as error:  # noqa: BLE001  -- reported when they have stopped
            failure = error
        self.applied = applied
        self.held = self.held.difference(ids)
        self._cron_progress.forget(ids)
        stopping = {one: self._scheduler.stop(one) for one in ids}
        for one, stopped in stopping.items():
            self._parts.end_wait_after(stopped, one)
        return stopping, failure

    def run_once(self, target: str) -> Mapping[str, Future[None]]:
        """Begin a single run of a component, or of each stopped one of a group, by their ids.

        A future is done when its component has stopped.

        Raises:
            NotFound: Nothing in the flow has this name.
        """
        ids = self._parts.targets(target)
        if len(ids) != 1:
            ids = self.in_state(ids, ComponentState.STOPPED)
        return {one: self._run_once(one) for one in ids}

    def _run_once(self, component_id: str) -> Future[None]:
        ran = self._scheduler.run_once(component_id)
        # The scheduler refuses the run of a component that was started, which may still try to.
        if not self._startable([component_id]):
            self._parts.end_wait_after(ran, component_id)
        return ran

    def in_state(self, ids: Iterable[str], *states: ComponentState) -> Sequence[str]:
        """Return the components that are in one of some states; any thread may call it."""
        found = answer(self._scheduler.statistics(list(ids))).components
        return [one.id for one in found if one.state in states]

    def clear_state(self, target: str) -> int:
        """Delete the persistent state of a component; return the number of its entries.

        Raises:
            NotFound: The flow does not have this component.
            Conflict: It is not stopped.
            Unavailable: It could not be written; the state is unchanged.
        """
        component_id = self._parts.component_id(target)
        if not self.in_state([component_id], ComponentState.STOPPED, ComponentState.DISABLED):
            raise Conflict(
                f"{self._parts.name_of(component_id)} is not stopped, and would write its state"
                " again: stop it first"
            )
        return self._parts.clear_state(component_id)

    def note_cron_progress(self, *, ends_in_order: bool = True) -> None:
        """Store the handled firing times of CRON driven components, if there are any."""
        schedules = self._parts.schedules
        if driven := [one for one, schedule in schedules.items() if schedule.cron is not None]:
            scheduling = answer(self._scheduler.statistics(driven))
            self._cron_progress.note(scheduling.components, schedules, ends_in_order=ends_in_order)

    def wait_stopped(self, stopping: Mapping[str, Future[None]]) -> None:
        """Wait until components have stopped.

        Raises:
            Conflict: A component does not stop in time.
        """
        late = wait(stopping.values(), self._stop_limit_s).not_done
        if late:
            names = sorted(
                self._parts.name_of(one) for one, each in stopping.items() if each in late
            )
            raise Conflict(
                f"{', '.join(names)} did not stop, because a thread is still running in it: "
                "wait, or terminate it, and try again"
            )
        for future in stopping.values():
            answer(future)

    def _concerned(self, changes: Sequence[FlowChange], index: FlowIndex) -> set[str]:
        """Return the components that must not run during changes, including funnels and ports."""
        concerned = {one for change in changes for one in change.stops}
        concerned |= {change.id for change in changes if change.kind is ChangeKind.REMOVED}
        concerned &= self._parts.component_ids
        return concerned | self._parts.touched(changes, index)

    def _keep(self, applied: AppliedFlow) -> None:
        """Store the flow to apply; after a failure a restart must find the previous one."""
        try:
            self._file.save(applied)
        except BaseException:
            try:
                self._file.save(self.applied)
            except Exception as error:  # noqa: BLE001  -- the first exception is raised
                _logger.warning("a restart may apply the change that failed: %s", error)
            raise

    def _update_bulletins(self, index: FlowIndex) -> None:
        self._bulletins.levels, self._bulletins.names = levels_of(index), names_of(index)

    def _with_wanted(self, ids: Sequence[str], target: str | None, *, running: bool) -> AppliedFlow:
        wanted = self.applied.wanted
        if target is None:
            wanted = WantedStates(all_running=running)
        for one in ids if target is not None else ():
            wanted = wanted.with_one(one, running=running)
        return replace(self.applied, wanted=wanted)

    def _release(self, ids: Iterable[str]) -> None:
        """Allow held components to start.

        The guard is notified even if they were stopped first: otherwise it would hold the
        components again after the next single end.
        """
        if self._guard is not None and (self.held or self._holds):
            self.held = self.held.difference(ids)
            self._holds = False
            self._guard.released()

    def _wanted(self, ids: Iterable[str]) -> list[str]:
        wanted = self.applied.wanted
        return [one for one in ids if wanted.runs(one) and self._parts.is_enabled(one)]

    def _startable(self, ids: Iterable[str]) -> list[str]:
        return [one for one in self._wanted(ids) if one not in self.held]

    def _start_wanted(self, ids: Iterable[str]) -> None:
        for started in [self._scheduler.start(one) for one in self._startable(ids)]:
            answer(started)


def _base(applied: AppliedFlow, flow: Flow) -> Flow:
    """Return the flow to compare with; before the first one, an empty flow of the same name."""
    return applied.flow if applied.revision else Flow(name=flow.name)
