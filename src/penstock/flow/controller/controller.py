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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, Unavailable
from penstock.core.threads import SerialExecutor
from penstock.flow.controller.applied_flow import AppliedFlow, AppliedFlowFile
from penstock.flow.controller.bulletins import LOGGER_NAME, BulletinBoard
from penstock.flow.controller.components import FlowComponents
from penstock.flow.controller.connection_queues import ConnectionQueues
from penstock.flow.controller.cron_progress import CronProgress
from penstock.flow.controller.flow_owner import FlowOwner
from penstock.flow.controller.flow_status import FlowStatus
from penstock.flow.controller.inspection import FlowInspection
from penstock.flow.controller.plans import FlowPlanner
from penstock.flow.controller.processor_types import RegistryTypes
from penstock.flow.controller.request_waits import answer
from penstock.flow.controller.running_flow import RunningFlow, StartGuard
from penstock.flow.graph.diff import FlowChange
from penstock.flow.graph.flow_comments import NO_COMMENTS, FlowComments
from penstock.flow.graph.flow_model import Flow
from penstock.flow.graph.source_locations import InvalidFlow, SourceLocations
from penstock.flow.graph.validation import validate
from penstock.flow.prioritizers import check_prioritizer
from penstock.flow.provenance.replay import FlowFileReplays
from penstock.flow.queue.heap_budget import HeapBudget
from penstock.flow.repository.commit_note import CommitNote
from penstock.flow.repository.commit_spool import SPOOL_FOLDER, SpoolOptions
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.scheduling.component_lifecycle import ComponentState
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
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.processor.processor_registry import ProcessorRegistry
    from penstock.flow.queue.queue import FlowFileQueue
    from penstock.flow.repository.commit_spool import CommitSpool
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
        provenance: Limits of the record of provenance; None: it is not recorded.
        guard: Decides at the start whether components that were running are started.
        owner: For whom the flow acts.
    """

    heap_bytes: int = 256 << 20
    stop_limit_s: float = 30.0
    close_limit_s: float = 10.0
    expire_every_ms: int = 30_000
    bulletins: int = 1_000
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    repository: RepositoryOptions = field(default_factory=RepositoryOptions)
    content: ContentOptions = field(default_factory=ContentOptions)
    provenance: SpoolOptions | None = None
    guard: StartGuard | None = None
    owner: FlowOwner = field(default_factory=FlowOwner)

    def __post_init__(self) -> None:
        for name in ("heap_bytes", "expire_every_ms", "bulletins"):
            if getattr(self, name) < 1:
                raise InvalidRequest(
                    f"is {getattr(self, name)}, but must be at least 1", place=name
                )


T = TypeVar("T")

_NOTE_EVERY_MS: Final = 10_000
_TRIM_EVERY_MS: Final = 10_000
# As often as access control reads its files.
_RECHECK_OWNER_MS: Final = 1_000


class FlowController:
    """Running flow. Created by `open`; all methods may be called from any thread.

    Its mutex is held during `close`, so that a second call returns once the flow is closed.

    Attributes:
        bulletins: Recent bulletins of components.
        inspection: Shows single parts.
        events: Events of recovery that an operator needs to know.
        replays: Replays FlowFiles.
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
        self._clock = clock
        self._resources = resources
        self.bulletins = BulletinBoard(options.bulletins)
        logger = logging.getLogger(LOGGER_NAME)
        logger.addHandler(self.bulletins)
        resources.callback(logger.removeHandler, self.bulletins)
        content, repository, kept = options.content, options.repository, options.provenance
        if kept is not None:
            content = replace(
                content, retention_ms=kept.retention_ms, retention_bytes=kept.retention_bytes
            )
            repository = replace(repository, spool=kept)
        self._content = ContentRepository.open(
            f"{folder}/content", fs=fs, clock=clock, options=content
        )
        resources.callback(self._content.close)
        self._repository = FlowFileRepository.open(
            f"{folder}/flowfiles",
            fs=fs,
            clock=clock,
            content=self._content,
            options=repository,
            spool_folder=None if kept is None else f"{folder}/{SPOOL_FOLDER}",
        )
        resources.callback(self._repository.close)
        self.events: Sequence[RecoveryEvent] = self._repository.recovered.events
        background = resources.enter_context(SerialExecutor("flow-swap"))
        self._budget = HeapBudget(options.heap_bytes)
        self._queues = ConnectionQueues(self._repository, clock, self._budget, background.start_job)
        self._services = SessionServices(
            *(self._repository, self._content, clock, new_uuid, fs),
            records=kept is not None,
            revision=lambda: self._flow.applied.revision,
        )
        self.replays = FlowFileReplays(self._repository, self._content, clock, new_uuid)
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
        self._parts = FlowComponents(
            *(self._scheduler, self._queues, self._services, cron_progress), options.owner
        )
        self.inspection = FlowInspection(self._parts, self._queues, self._scheduler, self._content)
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
        self,
        flow: Flow,
        *,
        revision: int | None = None,
        places: SourceLocations | None = None,
        owner: str = "",
        comments: FlowComments = NO_COMMENTS,
    ) -> Sequence[FlowChange]:
        """Apply a flow; unchanged components continue to run, unless it acts with other rights.

        A change of the comments alone is a revision, too, and stops nothing.

        Args:
            flow: The flow.
            revision: Revision on which the change is based; None: any.
            places: Positions of its parts in a file, for error messages.
            owner: Id of the principal for which it acts; empty: the installation. The caller has
                checked that this principal has the rights that the flow needs.
            comments: Comments of its file.

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
            partial(self._flow.apply, flow, revision, places, owner, comments),
            "apply flow %s",
            flow.name,
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

    def run_once(self, target: str) -> Mapping[str, str]:
        """Trigger stopped components once; returns when they have stopped again.

        Args:
            target: Id or name of a component, or of a group: then each stopped component in it is
                triggered. ``/`` is the whole flow.

        Returns:
            Why a component of a group could not run, by its id; empty: it ran.

        Raises:
            NotFound: Nothing in the flow has this name.
            Conflict: The single component is not stopped, or is invalid.
        """
        # Begun as a command, so that a change that stopped the processor does not find it running.
        is_group = len(self._parts.targets(target)) != 1
        running = self._do(partial(self._flow.run_once, target), "run %s once", target)
        return self._outcomes(running, is_group=is_group)

    def terminate(self, target: str) -> Mapping[str, str]:
        """Abandon the threads of components that do not stop after a request.

        Args:
            target: Id or name of a component, or of a group: then each component in it that is
                stopping is terminated. ``/`` is the whole flow.

        Returns:
            Why a component of a group was not terminated, by its id; empty: it was.

        Raises:
            NotFound: Nothing in the flow has this name.
            Conflict: No stop of the single component was requested, or nothing in the group is
                stopping.
        """
        ids = self._parts.targets(target)
        is_group = len(ids) != 1
        if is_group:
            # A start that hangs is terminated, too, once its stop was requested.
            states = (ComponentState.STARTING, ComponentState.STOPPING)
            wanted = self._flow.applied.wanted
            ids = [one for one in self._flow.in_state(ids, *states) if not wanted.runs(one)]
            if not ids:
                raise Conflict(f"nothing in {target} is stopping: stop it first")
        terminated = {one: self._scheduler.terminate(one) for one in ids}
        return self._outcomes(terminated, is_group=is_group)

    def clear_state(self, target: str) -> int:
        """Delete the persistent state of a stopped component; return the number of its entries.

        Raises:
            NotFound: The flow does not have this component.
            Conflict: It is not stopped.
            Unavailable: It could not be written; the state is unchanged.
        """
        return self._do(partial(self._flow.clear_state, target), "clear the state of %s", target)

    # -- provenance

    def record_download(self, flowfile: FlowFile, principal: str) -> None:
        """Record that a principal got the content of a FlowFile, if provenance is recorded.

        Raises:
            Unavailable: It cannot be recorded now.
        """
        if self._repository.spool is not None:
            now_ms = self._clock.now_ms()
            note = CommitNote(time_ms=now_ms, downloads=[flowfile.id], principal=principal)
            self._repository.commit(Changes(notes=[note]))

    # -- status

    def names_of(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the names of components and connections, without those that are unknown."""
        return self._parts.names_of(ids)

    def queue(self, target: str) -> FlowFileQueue:
        """Return the queue of a connection, by its id or its name.

        Raises:
            NotFound: The flow does not have this connection.
        """
        return self.inspection.queue(target)

    @property
    def spool(self) -> CommitSpool | None:
        """Return the spool of commits; None: provenance is not recorded."""
        return self._repository.spool

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
        components = self._parts.component_statuses(scheduling.components)
        held = self._flow.held
        return FlowStatus(
            applied.flow.name,
            applied.flow.version,
            applied.revision,
            applied.owner,
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
        timers.schedule_every(_RECHECK_OWNER_MS, self._flow.recheck_owner, "check the owner")
        timers.schedule_every(_TRIM_EVERY_MS, self._trim_content, "delete old content")
        timers.schedule_every(_NOTE_EVERY_MS, self._note_cron_progress_later, "store firing times")
        kept = self._file.load()
        self._do(partial(self._flow.restore, kept), "restore flow %s", kept.flow.name)

    def _trim_content(self) -> None:
        with suppress(PenstockError):  # the next attempt comes soon
            self._content.trim_retained()

    def _note_cron_progress_later(self) -> None:
        with suppress(PenstockError):  # the flow is being closed
            self._flow.note_cron_progress(ends_in_order=False)

    def _do(self, command: Callable[[], T], description: str, *arguments: object) -> T:
        future = self._control.executor.submit_change(command, description, *arguments)
        return answer(future)

    def _outcomes(
        self, futures: Mapping[str, Future[None]], *, is_group: bool
    ) -> Mapping[str, str]:
        """Wait for futures of components, by their ids; return why each failed, or an empty text.

        The scheduler knows only ids, so its errors get the component's name here.

        Raises:
            Conflict: It is the future of a single component, and failed so.
        """
        outcomes: dict[str, str] = {}
        for one, future in futures.items():
            try:
                answer(future)
            except Conflict as error:  # narrow: translates
                text = str(error).replace(one, self._parts.name_of(one))
                if not is_group:
                    raise Conflict(text) from error
                outcomes[one] = text
            else:
                outcomes[one] = ""
        return outcomes
