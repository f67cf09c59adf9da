"""The controller of a flow: opens what it needs, and hands commands to the thread that owns it.

Owns the threads and the repositories. Commands come one after the other, on one mailbox thread;
what is only read (`applied`, `status`, queues) is read from any thread, of immutable values. Does
not own what a command does (`running`), nor scheduling, sessions or queues, which it puts together.

A command that raises an exception other than a `PenstockError` ends its thread, and the process
with it: the next start puts the flow together from what is stored.

Order of a start: content, FlowFile repository, queues, components; then what was running runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar

from penstock.core.errors import Conflict, PenstockError, Unavailable
from penstock.flow.controller.answers import answer
from penstock.flow.controller.applied import AppliedFlow
from penstock.flow.controller.bulletins import LOGGER_NAME, BulletinBoard
from penstock.flow.controller.firings import Firings
from penstock.flow.controller.options import ControllerOptions
from penstock.flow.controller.parts import Parts
from penstock.flow.controller.plans import Planning
from penstock.flow.controller.queueing import QueueBoard
from penstock.flow.controller.running import RunningFlow
from penstock.flow.controller.status import FlowStatus
from penstock.flow.controller.types import RegistryTypes
from penstock.flow.graph.changes import Change
from penstock.flow.graph.model import Flow
from penstock.flow.graph.places import InvalidFlow, Places
from penstock.flow.graph.validation import validate
from penstock.flow.ownprioritizers import check_prioritizer
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

_FLOW_FILE: Final = "flow.json"
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
        self._modules = registry.modules
        self._types = RegistryTypes(registry, imports=True)
        self._types_without_imports = RegistryTypes(registry, imports=False)
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
        self._scheduling = MailboxThread(
            "flow-scheduler",
            clock=clock,
            on_failure=lambda _error: self._scheduler.loop_failed(),
            daemon=True,
        )
        self._scheduler = Scheduler(
            self._scheduling.processor,
            ThreadPool("flow"),
            clock=clock,
            options=options.scheduler,
        )
        self._control = MailboxThread("flow-control", clock=clock, daemon=True)
        firings = Firings(self._repository)
        self._parts = Parts(self._scheduler, self._queues, self._services, firings)
        self._flow = RunningFlow(
            lambda applied: applied.save(fs, self._path),
            Planning(registry, environment, fs.read_bytes),
            self._scheduler,
            self._parts,
            firings,
            self.bulletins,
            options.stop_limit_s,
        )
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
        return self._flow.applied

    @property
    def types(self) -> RegistryTypes:
        """Return the types of processors that there are."""
        return self._types

    def check(self, flow: Flow, places: Places | None = None) -> None:
        """Check whether a flow could be applied; nothing is changed and nothing imported.

        Properties and relationships of users' classes are checked only if an applied flow named
        them before.

        Raises:
            InvalidFlow: With everything that is wrong.
        """
        self._check(flow, places, self._types_without_imports)

    def _check(self, flow: Flow, places: Places | None, types: RegistryTypes) -> None:
        problems = validate(
            flow,
            types,
            places=places,
            check_prioritizer=lambda name: check_prioritizer(name, self._modules),
        )
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
        self._check(flow, places, self._types)
        return self._do(
            lambda: self._flow.apply(flow, revision, places), "apply flow %s", flow.name
        )

    def diff(self, flow: Flow) -> Sequence[Change]:
        """Return what `apply` would change."""
        return self._flow.diff(flow)

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
        return self._do(lambda: self._flow.start(target), "start %s", target)

    def stop(self, target: str | None = None) -> Sequence[str]:
        """Have components run no more; returns when they have stopped.

        Raises:
            NotFound: There is nothing of that name.
            Unavailable: They stop, but it could not be kept: a restart lets them run again.
            Conflict: One did not stop in time; it goes on stopping.
        """
        stopping, failure = self._do(lambda: self._flow.stop(target), "stop %s", target)
        self._flow.wait_stopped(stopping)
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
        ran = self._do(
            lambda: self._scheduler.run_once(self._parts.component_id(target)),
            "run %s once",
            target,
        )
        self._wait_named(ran, target)

    def terminate(self, target: str) -> None:
        """Give up the threads of a processor that was told to stop and does not.

        Raises:
            NotFound: There is no such processor.
            Conflict: It was not told to stop.
        """
        self._wait_named(self._scheduler.terminate(self._parts.component_id(target)), target)

    # -- what is known

    def queue(self, target: str) -> FlowFileQueue:
        """Return the queue of a connection, by its id or its name.

        Raises:
            NotFound: There is no such connection.
        """
        return self._queues.find(self._parts.connection_id(target))

    def check_synced(self) -> None:
        """Return if commits reach the disk in time. Raises Unavailable if they do not."""
        self._repository.check_synced()

    def status(self) -> FlowStatus:
        """Return what the flow is doing."""
        applied = self._flow.applied
        scheduling = answer(self._scheduler.statistics())
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

    def call_when_stopped(self, callback: Callable[[], None]) -> None:
        """Call back once the FlowFile repository refuses everything until a restart.

        Args:
            callback: Has the process restart; called once, by any thread, and must not block.
        """
        self._repository.call_when_stopped(callback)

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
                    self._flow.note_firings()
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
        self._do(lambda: self._flow.restore(kept), "restore flow %s", kept.flow.name)

    def _note_firings_later(self) -> None:
        with suppress(PenstockError):  # while it is being closed
            self._flow.note_firings(ends_in_order=False)

    def _do(self, command: Callable[[], T], description: str, *arguments: object) -> T:
        future = self._control.executor.submit_change(command, description, *arguments)
        return answer(future)

    def _wait_named(self, future: Future[None], target: str) -> None:
        """Wait; the scheduler, which knows ids alone, refuses in words that name the component."""
        try:
            answer(future)
        except Conflict as error:
            id_ = self._parts.component_id(target)
            raise Conflict(str(error).replace(id_, self._parts.name_of(id_))) from error
