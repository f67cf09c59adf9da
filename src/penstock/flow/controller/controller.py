"""Flow controller: opens the repositories of a flow and executes commands on it.

Owns the threads and the repositories. Commands run one after the other on one mailbox thread;
`applied`, `status` and the queues are immutable values that any thread may read. Does not own
the implementation of commands (`running_flow`), scheduling, sessions or queues.
`ControllerOptions` has the limits of a running flow.

Start order: content repository, FlowFile repository, queues, components; then the components
that were running are started. A command that raises an exception other than a `PenstockError`
ends the mailbox thread and the process; the next start restores the flow from storage.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, Unavailable
from penstock.core.threads import SerialExecutor
from penstock.flow.controller.applied_flow import AppliedFlow, AppliedFlowFile
from penstock.flow.controller.bulletins import LOGGER_NAME, BulletinBoard
from penstock.flow.controller.components import FlowComponents
from penstock.flow.controller.connection_queues import ConnectionQueues
from penstock.flow.controller.cron_progress import CronProgress
from penstock.flow.controller.flow_status import FlowStatus
from penstock.flow.controller.plans import FlowPlanner
from penstock.flow.controller.processor_types import RegistryTypes
from penstock.flow.controller.request_waits import answer
from penstock.flow.controller.running_flow import RunningFlow, StartGuard
from penstock.flow.graph.diff import FlowChange
from penstock.flow.graph.flow_model import Flow
from penstock.flow.graph.source_locations import InvalidFlow, SourceLocations
from penstock.flow.graph.validation import validate
from penstock.flow.prioritizers import check_prioritizer
from penstock.flow.queue.heap_budget import HeapBudget
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.scheduling.dispatcher import SchedulerOptions
from penstock.flow.scheduling.pool import ThreadPool
from penstock.flow.scheduling.scheduler import Scheduler
from penstock.flow.session.services import SessionServices
from penstock.mailbox.thread import MailboxThread
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.content.options import ContentOptions

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.flow.processor.processor_registry import ProcessorRegistry
    from penstock.flow.queue.queue import FlowFileQueue
    from penstock.flow.repository.repository_changes import RecoveryEvent
    from penstock.storage.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Limits and intervals of a running flow.

    Attributes:
        heap_bytes: Approximate limit of the memory for FlowFiles of all queues; more are swapped
            out.
        stop_limit_s: How long a change waits for processors to stop before it is refused.
        close_limit_s: How long `close` waits for processors to stop before it abandons them.
        expire_every_ms: Interval of the search for expired FlowFiles in queues that no component
            polls.
        bulletins: Number of bulletins to keep.
        scheduler: Options of the scheduler.
        repository: Options of the FlowFile repository.
        content: Options of the content repository.
        guard: Decides at the start whether components that were running are started.
    """

    heap_bytes: int = 256 << 20
    stop_limit_s: float = 30.0
    close_limit_s: float = 10.0
    expire_every_ms: int = 30_000
    bulletins: int = 1_000
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    repository: RepositoryOptions = field(default_factory=RepositoryOptions)
    content: ContentOptions = field(default_factory=ContentOptions)
    guard: StartGuard | None = None

    def __post_init__(self) -> None:
        for name in ("heap_bytes", "expire_every_ms", "bulletins"):
            if getattr(self, name) < 1:
                raise InvalidRequest(
                    f"is {getattr(self, name)}, but must be at least 1", place=name
                )


T = TypeVar("T")

_NOTE_EVERY_MS: Final = 10_000


class FlowController:
    """Running flow. Created by `open`; all methods may be called from any thread.

    Its mutex is held during `close`, so that a second call returns once the flow is closed.

    Attributes:
        bulletins: Recent bulletins of components.
        events: Events of recovery that an operator needs to know.
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
        self._file = AppliedFlowFile(fs, folder)
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
        background = resources.enter_context(SerialExecutor("flow-swap"))
        self._budget = HeapBudget(options.heap_bytes)
        self._queues = ConnectionQueues(self._repository, clock, self._budget, background.start_job)
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
        cron_progress = CronProgress(self._repository)
        self._parts = FlowComponents(self._scheduler, self._queues, self._services, cron_progress)
        self._flow = RunningFlow(
            self._file,
            FlowPlanner(registry, environment, fs),
            self._scheduler,
            self._parts,
            cron_progress,
            self.bulletins,
            options.stop_limit_s,
            options.guard,
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
        """Open a folder, recover its content, and run the components that were running.

        Args:
            folder: Folder of this controller only; created if it is missing.
            fs: The file system.
            clock: The current time.
            registry: Finds the classes of processors.
            new_uuid: Returns a unique text.
            environment: Environment variables that parameters may name.
            options: Limits and intervals.

        Raises:
            Conflict: Another process has the folder open.
            CorruptData: Durable data is damaged; the message contains the remedy.
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
                with suppress(PenstockError):  # the first failure is reported
                    controller.close()
                raise
            controller._resources = resources.pop_all()
        return controller

    # -- the flow

    @property
    def applied(self) -> AppliedFlow:
        """Return the applied flow."""
        return self._flow.applied

    @property
    def types(self) -> RegistryTypes:
        """Return the types of processors that flows may use."""
        return self._types

    def check(self, flow: Flow, places: SourceLocations | None = None) -> None:
        """Check whether a flow could be applied, without changing or importing anything.

        Properties and relationships of user classes are checked only if an applied flow named them
        before.

        Raises:
            InvalidFlow: Lists every error.
        """
        self._check(flow, places, self._types_without_imports)

    def _check(self, flow: Flow, places: SourceLocations | None, types: RegistryTypes) -> None:
        problems = validate(
            flow,
            types,
            places=places,
            check_prioritizer=lambda name: check_prioritizer(name, self._modules),
        )
        if problems:
            raise InvalidFlow(problems)

    def apply(
        self, flow: Flow, *, revision: int | None = None, places: SourceLocations | None = None
    ) -> Sequence[FlowChange]:
        """Apply a flow; unchanged components continue to run.

        Args:
            flow: The flow.
            revision: Revision on which the change is based; None: any.
            places: Positions of its parts in a file, for error messages.

        Returns:
            The changes.

        Raises:
            InvalidFlow: Lists every error.
            Conflict: The current revision is another one, a connection to remove contains
                FlowFiles, or a processor does not stop. Nothing was changed.
            Unavailable: The flow could not be stored; nothing was changed.
        """
        self._check(flow, places, self._types)
        return self._do(
            partial(self._flow.apply, flow, revision, places), "apply flow %s", flow.name
        )

    def diff(self, flow: Flow) -> Sequence[FlowChange]:
        """Return what `apply` would change."""
        return self._flow.diff(flow)

    # -- start and stop

    def start(self, target: str | None = None) -> Sequence[str]:
        """Start components, now and after every restart; running ones continue.

        Args:
            target: Id or name of a component, or of a group with all its components; None: all
                components, including those added later.

        Returns:
            Ids of the components.

        Raises:
            NotFound: Nothing in the flow has this name.
            Conflict: The target is a single disabled component.
            Unavailable: The change could not be stored.
        """
        return self._do(partial(self._flow.start, target), "start %s", target)

    def stop(self, target: str | None = None) -> Sequence[str]:
        """Stop components; returns when they have stopped.

        Raises:
            NotFound: Nothing in the flow has this name.
            Unavailable: They have stopped, but this could not be stored: a restart runs them again.
            Conflict: A component did not stop in time; it continues to stop.
        """
        stopping, failure = self._do(partial(self._flow.stop, target), "stop %s", target)
        self._flow.wait_stopped(stopping)
        if failure is not None:
            raise Unavailable(
                "the components stopped, but this could not be stored, so a restart runs them "
                f"again: {failure}"
            ) from failure
        return tuple(stopping)

    def run_once(self, target: str) -> None:
        """Trigger a stopped processor once; returns when it has stopped again.

        Raises:
            NotFound: The flow does not have this processor.
            Conflict: It is not stopped, or is invalid.
        """
        # Begun as a command, so that a change that stopped the processor does not find it running.
        ran = self._do(partial(self._flow.run_once, target), "run %s once", target)
        self._wait_named(ran, target)

    def terminate(self, target: str) -> None:
        """Abandon the threads of a processor that does not stop after a request.

        Raises:
            NotFound: The flow does not have this processor.
            Conflict: No stop was requested.
        """
        self._wait_named(self._scheduler.terminate(self._parts.component_id(target)), target)

    # -- status

    def queue(self, target: str) -> FlowFileQueue:
        """Return the queue of a connection, by its id or its name.

        Raises:
            NotFound: The flow does not have this connection.
        """
        return self._queues.find(self._parts.connection_id(target))

    def check_synced(self) -> None:
        """Check that commits are synced in time; raise Unavailable if they are not."""
        self._repository.check_synced()

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return the dependencies that processors wait for."""
        return self._parts.waits()

    def status(self) -> FlowStatus:
        """Return the status of the flow."""
        applied = self._flow.applied
        scheduling = answer(self._scheduler.statistics())
        components = self._parts.component_statuses(scheduling)
        held = self._flow.held
        return FlowStatus(
            applied.flow.name,
            applied.flow.version,
            applied.revision,
            components,
            self._parts.connection_statuses(),
            scheduling.threads,
            scheduling.busy_threads,
            scheduling.terminated_threads,
            self._budget.used_bytes,
            self._budget.limit_bytes,
            [one.name for one in components if one.id in held],
            self._queues.orphaned,
            self._repository.statistics(),
            self._content.statistics(),
        )

    def call_when_stopped(self, callback: Callable[[], None]) -> None:
        """Register a callback for the time when the FlowFile repository stops until a restart.

        Args:
            callback: Restarts the process; called once, by any thread. It must not block.
        """
        self._repository.call_when_stopped(callback)

    def close(self) -> None:
        """Stop everything in order; running components run again at the next start.

        A second call does nothing. Processors that do not stop in time are abandoned: FlowFiles
        that they took are in their queue again after the next start.
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
                    self._flow.note_cron_progress()
                stopping = [self._scheduler.stop(one) for one in self._parts.component_ids]
                wait(stopping, limit_s)
                self._scheduler.close().result(limit_s)
            self._scheduling.stop(drain=False)
            self._scheduling.join(limit_s)
            self._resources.close()

    # -- on the mailbox thread

    def _begin(self) -> None:
        self._scheduling.start()
        self._control.start()
        every_ms = self._options.expire_every_ms
        timers = self._control.timers
        timers.schedule_every(every_ms, self._queues.expire, "expire FlowFiles")
        timers.schedule_every(_NOTE_EVERY_MS, self._note_cron_progress_later, "store firing times")
        kept = self._file.load()
        self._do(partial(self._flow.restore, kept), "restore flow %s", kept.flow.name)

    def _note_cron_progress_later(self) -> None:
        with suppress(PenstockError):  # the flow is being closed
            self._flow.note_cron_progress(ends_in_order=False)

    def _do(self, command: Callable[[], T], description: str, *arguments: object) -> T:
        future = self._control.executor.submit_change(command, description, *arguments)
        return answer(future)

    def _wait_named(self, future: Future[None], target: str) -> None:
        """Wait for a future.

        The scheduler knows only ids, so its errors get the component's name here.
        """
        try:
            answer(future)
        except Conflict as error:  # narrow: translates
            id_ = self._parts.component_id(target)
            raise Conflict(str(error).replace(id_, self._parts.name_of(id_))) from error
