"""The controller of a flow: opens what it needs, applies changes while it runs, starts and stops.

Owns the flow that runs, on one mailbox thread: commands come one after the other. What is only read
(`applied`, `status`, queues) is read from any thread, of immutable values. Does not own scheduling,
sessions or queues, which it puts together.

Order of a start: content, FlowFile repository, queues, components; then what was running runs.

Invariants:

- What does not change goes on running while a change is applied; what has to stop for it is stopped
  before and started again after.
- A change is kept durably before it is made; one that is refused changes nothing. A stop alone is
  made also where it cannot be kept.
- A connection that holds FlowFiles does not go away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self, TypeVar

from penstock.core.errors import Closed, Conflict, NotFound, PenstockError, Unavailable
from penstock.flow.controller.applied import AppliedFlow, Wanted
from penstock.flow.controller.bulletins import LOGGER_NAME, BulletinBoard, levels_of, names_of
from penstock.flow.controller.firings import Firings
from penstock.flow.controller.options import ControllerOptions
from penstock.flow.controller.parts import Parts
from penstock.flow.controller.plans import Plans, check_prioritizer
from penstock.flow.controller.queueing import QueueBoard
from penstock.flow.controller.status import FlowStatus
from penstock.flow.controller.types import RegistryTypes
from penstock.flow.graph.changes import Change, ChangeKind, diff
from penstock.flow.graph.index import FlowIndex, Kind
from penstock.flow.graph.model import Flow
from penstock.flow.graph.parameters import ParameterValues
from penstock.flow.graph.places import InvalidFlow, Places, listed
from penstock.flow.graph.validation import validate
from penstock.flow.queue.budget import HeapBudget
from penstock.flow.repository.repository import FlowFileRepository
from penstock.flow.scheduling.pool import ThreadPool
from penstock.flow.scheduling.scheduler import Scheduler
from penstock.flow.session.wiring import SessionServices
from penstock.mailbox.thread import MailboxThread
from penstock.storage.content.repository import ContentRepository

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.processor.registry import ProcessorRegistry
    from penstock.flow.queue.queue import FlowFileQueue
    from penstock.flow.repository.changes import RecoveryEvent
    from penstock.storage.filesystem import FileSystem

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_FLOW_FILE: Final = "flow.json"
_COMMAND_LIMIT_S: Final = 300.0
_NOTE_EVERY_MS: Final = 10_000


class FlowController:
    """A flow at work. Made by `open`; all methods may be called from any thread.

    Its mutex is held while it closes: who closes it a second time returns when it is closed.

    Attributes:
        bulletins: What components last had to say.
        events: What the start found that somebody has to know.
    """

    def __init__(
        self,
        folder: str,
        *,
        fs: FileSystem,
        clock: Clock,
        registry: ProcessorRegistry,
        new_uuid: Callable[[], str],
        environment: Mapping[str, str],
        options: ControllerOptions,
        resources: ExitStack,
    ) -> None:
        self._path = f"{folder}/{_FLOW_FILE}"
        self._fs = fs
        self._registry = registry
        self._types = RegistryTypes(registry)
        self._environment = environment
        self._options = options
        self._resources = resources
        self.bulletins = BulletinBoard(options.bulletins)
        logger = logging.getLogger(LOGGER_NAME)
        logger.addHandler(self.bulletins)
        resources.callback(logger.removeHandler, self.bulletins)
        self._content = ContentRepository.open(
            f"{folder}/content", fs=fs, clock=clock, options=options.content
        )
        resources.callback(self._content.close)
        self._repository = FlowFileRepository.open(
            f"{folder}/flowfiles",
            fs=fs,
            clock=clock,
            content=self._content,
            options=options.repository,
        )
        resources.callback(self._repository.close)
        self.events: Sequence[RecoveryEvent] = self._repository.recovered.events
        background = resources.enter_context(ThreadPoolExecutor(1, "flow-swap"))
        self._budget = HeapBudget(options.heap_bytes)
        self._queues = QueueBoard(self._repository, clock, self._budget, background.submit)
        self._services = SessionServices(self._repository, self._content, clock, new_uuid, fs)
        self._scheduling = MailboxThread("flow-scheduler", clock=clock, daemon=True)
        self._scheduler = Scheduler(
            self._scheduling.processor,
            ThreadPool("flow"),
            clock=clock,
            options=options.scheduler,
        )
        self._control = MailboxThread("flow-control", clock=clock, daemon=True)
        self._firings = Firings(self._repository)
        self._parts = Parts(self._scheduler, self._queues, self._services, self._firings)
        self._applied = AppliedFlow(Flow(name="flow"))
        self._closing = threading.Lock()
        self._closed = False

    @classmethod
    def open(
        cls,
        folder: str,
        *,
        fs: FileSystem,
        clock: Clock,
        registry: ProcessorRegistry,
        new_uuid: Callable[[], str],
        environment: Mapping[str, str],
        options: ControllerOptions | None = None,
    ) -> Self:
        """Open a folder, recover what is in it, and let run what was running.

        Args:
            folder: Of this controller alone; made when it is missing.
            fs: The file system.
            clock: Tells the time.
            registry: Finds the classes of processors.
            new_uuid: Gives text that was never given before.
            environment: Environment variables that parameters may name.
            options: The bounds.

        Raises:
            Conflict: Somebody else has it open.
            CorruptData: What was durable is damaged; the message says the mend.
            Unavailable: I/O error.
        """
        fs.mkdir(folder)
        with ExitStack() as resources:
            controller = cls(
                folder,
                fs=fs,
                clock=clock,
                registry=registry,
                new_uuid=new_uuid,
                environment=environment,
                options=options or ControllerOptions(),
                resources=resources,
            )
            try:
                controller._begin()
            except BaseException:
                with suppress(PenstockError):  # what failed before is what there is to tell
                    controller.close()
                raise
            controller._resources = resources.pop_all()
        return controller

    # -- the flow

    @property
    def applied(self) -> AppliedFlow:
        """Return the flow that runs."""
        return self._applied

    @property
    def types(self) -> RegistryTypes:
        """Return the types of processors that there are."""
        return self._types

    def check(self, flow: Flow, places: Places | None = None) -> None:
        """See whether a flow could be applied; nothing is changed.

        Raises:
            InvalidFlow: With everything that is wrong.
        """
        problems = validate(flow, self._types, places=places, check_prioritizer=check_prioritizer)
        if problems:
            raise InvalidFlow(problems)

    def apply(
        self, flow: Flow, *, revision: int | None = None, places: Places | None = None
    ) -> Sequence[Change]:
        """Make this the flow that runs; what does not change goes on.

        Args:
            flow: The flow.
            revision: The revision that the change was made from; None: whatever it is.
            places: Where its parts are in a file, for problems.

        Returns:
            What changed.

        Raises:
            InvalidFlow: With everything that is wrong.
            Conflict: The revision is another, a connection that goes holds FlowFiles, or a
                processor does not stop. Nothing was changed.
            Unavailable: It could not be kept; nothing was changed.
        """
        self.check(flow, places)
        return self._do(lambda: self._apply(flow, revision, places), "apply flow %s", flow.name)

    def diff(self, flow: Flow) -> Sequence[Change]:
        """Return what `apply` would change."""
        return diff(_base(self._applied, flow), flow)

    # -- what runs

    def start(self, target: str | None = None) -> Sequence[str]:
        """Have components run, now and after every restart; those that run go on.

        Args:
            target: Id or name of a component, or of a group with all in it; None: everything,
                and what is added later.

        Returns:
            Ids of the components.

        Raises:
            NotFound: There is nothing of that name.
            Conflict: The only one that was meant is disabled.
            Unavailable: It could not be kept.
        """
        return self._do(lambda: self._start(target), "start %s", target)

    def stop(self, target: str | None = None) -> Sequence[str]:
        """Have components run no more; returns when they have stopped.

        Raises:
            NotFound: There is nothing of that name.
            Unavailable: They stop, but it could not be kept: a restart lets them run again.
            Conflict: One did not stop in time; it goes on stopping.
        """
        stopping, failure = self._do(lambda: self._stop(target), "stop %s", target)
        self._wait_stopped(stopping)
        if failure is not None:
            raise Unavailable(
                f"stopped, but that could not be kept, so that a restart lets run again: {failure}"
            ) from failure
        return tuple(stopping)

    def run_once(self, target: str) -> None:
        """Trigger a stopped processor once; returns when it has stopped again.

        Raises:
            NotFound: There is no such processor.
            Conflict: It is not stopped, or not valid.
        """
        # Begun between the commands: a change that stopped it must not find it running.
        ran = self._do(lambda: self._scheduler.run_once(self._one(target)), "run %s once", target)
        self._wait_named(ran, target)

    def terminate(self, target: str) -> None:
        """Give up the threads of a processor that was told to stop and does not.

        Raises:
            NotFound: There is no such processor.
            Conflict: It was not told to stop.
        """
        self._wait_named(self._scheduler.terminate(self._one(target)), target)

    # -- what is known

    def queue(self, target: str) -> FlowFileQueue:
        """Return the queue of a connection, by its id or its name.

        Raises:
            NotFound: There is no such connection.
        """
        return self._queues.find(self._parts.connection_id(target))

    def status(self) -> FlowStatus:
        """Return what the flow is doing."""
        applied = self._applied
        scheduling = self._wait(self._scheduler.statistics())
        return FlowStatus(
            applied.flow.name,
            applied.flow.version,
            applied.revision,
            self._parts.component_statuses(scheduling),
            self._parts.connection_statuses(),
            scheduling.threads,
            scheduling.busy_threads,
            scheduling.terminated_threads,
            self._budget.used_bytes,
            self._budget.limit_bytes,
            self._queues.orphaned,
            self._repository.statistics(),
            self._content.statistics(),
        )

    def close(self) -> None:
        """Stop everything in order; what was running runs again at the next start. Twice is fine.

        Processors that do not stop in time are left: what they had taken is in its queue again
        after the next start.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            limit_s = self._options.close_limit_s
            self._control.stop(drain=False)
            is_quiet = self._control.join(limit_s)
            with suppress(PenstockError, FutureTimeoutError, CancelledError):
                if is_quiet:
                    self._note_firings()
                stopping = [self._scheduler.stop(one) for one in self._parts.component_ids]
                wait(stopping, limit_s)
                self._scheduler.close().result(limit_s)
            self._scheduling.stop(drain=False)
            self._scheduling.join(limit_s)
            self._resources.close()

    # -- on the control thread

    def _begin(self) -> None:
        self._scheduling.start()
        self._control.start()
        every_ms = self._options.expire_every_ms
        timers = self._control.timers
        timers.schedule_every(every_ms, self._queues.expire, "expire FlowFiles")
        timers.schedule_every(_NOTE_EVERY_MS, self._note_firings_later, "keep firing times")
        kept = AppliedFlow.load(self._fs, self._path)
        self._do(lambda: self._restore(kept), "restore flow %s", kept.flow.name)

    def _restore(self, kept: AppliedFlow) -> None:
        """Put the flow together that was applied before this start.

        What cannot be as it was, because a parameter or a class is not there any more, does not
        start and says so; everything else goes on.
        """
        plans = self._plans(FlowIndex.of(kept.flow))
        for problem in plans.problems:
            _logger.error("after the restart: %s", problem)
        self._firings.forget(one for one in plans.schedules if not kept.wanted.runs(one))
        self.bulletins.levels, self.bulletins.names = levels_of(plans.index), names_of(plans.index)
        self._parts.change(plans, set())
        self._applied = kept
        self._start_wanted(self._parts.component_ids)

    def _apply(self, flow: Flow, revision: int | None, places: Places | None) -> Sequence[Change]:
        before = self._applied
        if revision is not None and revision != before.revision:
            raise Conflict(
                f"the flow is at revision {before.revision}, not {revision}: somebody changed it; "
                "look at it again"
            )
        if before.revision and flow == before.flow:
            return ()
        changes = diff(_base(before, flow), flow)
        index = FlowIndex.of(flow)
        ParameterValues.load(index, self._environment, self._fs.read_bytes, places)
        plans = self._plans(index, places)
        if plans.problems:
            raise InvalidFlow(plans.problems)
        components = frozenset(plans.schedules)
        after = AppliedFlow(flow, before.revision + 1, before.wanted.only(components))
        self._note_firings()
        stopped = self._stop_for(changes, index)
        try:
            self._refuse_losses(changes)
            after.save(self._fs, self._path)
        except PenstockError:
            self._start_wanted(stopped)
            raise
        self._firings.forget(self._parts.component_ids - components)
        self.bulletins.levels, self.bulletins.names = levels_of(index), names_of(index)
        self._parts.change(plans, stopped)
        self._applied = after
        self._start_wanted(stopped | self._parts.component_ids)
        return changes

    def _plans(self, index: FlowIndex, places: Places | None = None) -> Plans:
        def values() -> ParameterValues:
            return ParameterValues.load_known(index, self._environment, self._fs.read_bytes)

        return Plans(index, values, self._registry, places)

    def _stop_for(self, changes: Sequence[Change], index: FlowIndex) -> set[str]:
        """Stop what must not run while changes are made; funnels and ports at changed ends, too."""
        concerned = {one for change in changes for one in change.stops}
        concerned |= {change.id for change in changes if change.kind is ChangeKind.REMOVED}
        concerned &= self._parts.component_ids
        concerned |= self._parts.touched(changes, index)
        self._wait_stopped(
            {one: self._scheduler.stop(one) for one in concerned}, self._start_wanted
        )
        return concerned

    def _refuse_losses(self, changes: Sequence[Change]) -> None:
        going = [
            (change.name, self._queues.find(change.id).size.count)
            for change in changes
            if change.must_be_empty and change.component is Kind.CONNECTION
        ]
        held = [f"connection {name} holds {count:,} FlowFiles" for name, count in going if count]
        if held:
            raise Conflict(
                f"{listed(held)}: a connection that goes must be empty; let them be taken, or "
                "drop them with penstock flow queue drop, first"
            )

    def _start(self, target: str | None) -> Sequence[str]:
        ids = self._parts.targets(target)
        if len(ids) == 1 and target is not None and not self._parts.is_enabled(ids[0]):
            raise Conflict(
                f"{self._parts.name_of(ids[0])} is disabled: enable it in the flow first"
            )
        applied = self._with_wanted(ids, target, running=True)
        applied.save(self._fs, self._path)
        self._applied = applied
        self._start_wanted(set(ids))
        return ids

    def _stop(self, target: str | None) -> tuple[Mapping[str, Future[None]], PenstockError | None]:
        """Tell components to stop, here, so that no command that came later is overtaken.

        They stop also where the disk is full: one of them may be what fills it.
        """
        ids = self._parts.targets(target)
        failure: PenstockError | None = None
        applied = self._with_wanted(ids, target, running=False)
        try:
            applied.save(self._fs, self._path)
        except Unavailable as error:
            failure = error
        self._applied = applied
        self._firings.forget(ids)
        return {one: self._scheduler.stop(one) for one in ids}, failure

    def _with_wanted(self, ids: Sequence[str], target: str | None, *, running: bool) -> AppliedFlow:
        wanted = self._applied.wanted
        if target is None:
            wanted = Wanted(all_running=running)
        for one in ids if target is not None else ():
            wanted = wanted.with_one(one, running=running)
        return replace(self._applied, wanted=wanted)

    def _note_firings_later(self) -> None:
        with suppress(PenstockError):  # while it is being closed
            self._note_firings(ends_in_order=False)

    def _note_firings(self, *, ends_in_order: bool = True) -> None:
        """Keep up to when CRON driven components are served, if there are any."""
        schedules = self._parts.schedules
        if driven := [one for one, schedule in schedules.items() if schedule.cron is not None]:
            scheduling = self._wait(self._scheduler.statistics(driven))
            self._firings.note(scheduling.components, schedules, ends_in_order=ends_in_order)

    def _start_wanted(self, ids: Iterator[str] | set[str] | frozenset[str]) -> None:
        wanted = self._applied.wanted
        chosen = [one for one in ids if wanted.runs(one) and self._parts.is_enabled(one)]
        for started in [self._scheduler.start(one) for one in chosen]:
            self._wait(started)

    # -- waiting

    def _one(self, target: str) -> str:
        ids = self._parts.targets(target)
        if len(ids) != 1:
            raise NotFound(f"{target} is a group: name one processor in it")
        return ids[0]

    def _do(self, command: Callable[[], T], description: str, *arguments: object) -> T:
        future = self._control.executor.submit(command, description, *arguments)
        return self._wait(future)

    def _wait(self, future: Future[T]) -> T:
        try:
            return future.result(_COMMAND_LIMIT_S)
        except FutureTimeoutError:
            raise Unavailable(
                "the flow did not answer in time: see what it is doing, and try again"
            ) from None
        except CancelledError:
            raise Closed("the flow is being closed") from None

    def _wait_named(self, future: Future[None], target: str) -> None:
        """Wait; the scheduler, which knows ids alone, refuses in words that name the component."""
        try:
            self._wait(future)
        except Conflict as error:
            id_ = self._one(target)
            raise Conflict(str(error).replace(id_, self._parts.name_of(id_))) from error

    def _wait_stopped(
        self,
        stopping: Mapping[str, Future[None]],
        otherwise: Callable[[set[str]], None] = lambda _ids: None,
    ) -> None:
        """Wait until components have stopped; else tell which do not, after undoing."""
        late = wait(stopping.values(), self._options.stop_limit_s).not_done
        if late:
            names = sorted(
                self._parts.name_of(one) for one, each in stopping.items() if each in late
            )
            otherwise(set(stopping))
            raise Conflict(
                f"{', '.join(names)} does not stop, a thread is still in it: wait, or "
                "terminate it, and try again"
            )
        for future in stopping.values():
            self._wait(future)


def _base(applied: AppliedFlow, flow: Flow) -> Flow:
    """Return what a flow is compared with; before the first there is nothing but its name."""
    return applied.flow if applied.revision else Flow(name=flow.name)
