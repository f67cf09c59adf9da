"""Processor of a flow as the scheduler runs it: its instance, its sessions, and their counts.

Owns one processor's instance from a start to its stop, and its open sessions. Does not own when it
runs (`scheduling`), nor its queues (`connection_queues`).

Invariants: an instance serves one start. Threads of a terminated processor keep the old instance,
and their sessions raise. A trigger ends with its session committed or rolled back, even if it
raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.flow.controller.component_connections import has_work, is_open
from penstock.flow.errors import Terminated, error_text
from penstock.flow.processor.process_context import ProcessContext, ProcessorIdentity
from penstock.flow.processor.processor import Processor
from penstock.flow.processor.property_types import PropertyValue
from penstock.flow.scheduling.component_protocol import (
    NOTHING_DONE,
    WORKED,
    ComponentRun,
    RunOutcome,
)
from penstock.flow.session.process_session import ProcessSession
from penstock.flow.session.services import SessionContext, SessionServices
from penstock.flow.session.session_transaction import SessionTransaction
from penstock.flow.session.statistics import IDLE, SessionStatistics

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait, WaitTable
    from penstock.flow.controller.component_connections import ComponentConnections
    from penstock.flow.processor_state import StateManager
    from penstock.flow.relationships import RelationshipRetry
    from penstock.flow.scheduling.component_protocol import SchedulerSignals


@dataclass(frozen=True, slots=True)
class ProcessorPlan:
    """Plan of a processor.

    Attributes:
        identity: Id, name and settings of the processor.
        kind: Its class.
        properties: Returns its properties with parameters substituted; raises `PenstockError` for a
            missing parameter.
        auto_terminated: Relationships at which FlowFiles end.
        retries: Retries by relationship.
    """

    identity: ProcessorIdentity
    kind: Callable[[], type[Processor]]
    properties: Callable[[], Mapping[str, PropertyValue]]
    auto_terminated: frozenset[str]
    retries: Mapping[str, RelationshipRetry]


class _Instance:
    """Instance of a processor for one start, and the host of its context."""

    def __init__(self, node: ProcessorNode, processor: Processor) -> None:
        self.processor = processor
        self.relationships = tuple(processor.relationships())
        self.is_wanted = True
        self.yields = 0
        self.unavailable_reports = 0
        self._node = node
        plan = node.plan
        self.session_context = SessionContext(
            plan.identity.id,
            node.state,
            node.connections.inputs,
            node.connections.outputs,
            frozenset(self.relationships),
            plan.auto_terminated,
            plan.retries,
            processor.triggers_when_any_open,
            plan.identity.penalty_ms,
            plan.identity.yield_ms,
            self.yield_for,
        )
        self.context = ProcessContext(plan.identity, self, node.state, node.services.clock)

    def let_go(self) -> None:
        """Have the instance release its resources, even if its start was abandoned meanwhile."""
        processor = self.processor
        hooks = {"on_unscheduled": processor.on_unscheduled, "on_stopped": processor.on_stopped}
        for name, hook in hooks.items():
            try:
                hook(self.context)
            except BaseException as error:  # noqa: BLE001 - code of a user; also catches sys.exit()
                text = error_text(error)
                self.context.log.warning("after an abandoned start, %s raised %s", name, text)

    def yield_for(self, wait_ms: int) -> None:
        """Do not trigger the processor for this time."""
        self.yields += 1
        self._node.signals.yield_for(self._node.plan.identity.id, wait_ms)

    def wake(self) -> None:
        """Check for work, because new input has arrived."""
        self._node.signals.wake(self._node.plan.identity.id)

    def report_unavailable(self, error: Unavailable, tries: int | None) -> None:
        """Record that a dependency fails."""
        self.unavailable_reports += 1
        self._node.record_wait(self, error, tries)

    def is_scheduled(self) -> bool:
        """Return whether the processor should continue to run."""
        return self.is_wanted

    def is_connected(self, relationship: str) -> bool:
        """Return whether this relationship has an outgoing connection."""
        return bool(self._node.connections.outputs.get(relationship))

    def is_available(self, relationship: str) -> bool:
        """Return whether every connection of this relationship has room."""
        return not any(
            queue.is_full for queue in self._node.connections.outputs.get(relationship, ())
        )

    def has_input(self) -> bool:
        """Return whether the processor has an incoming connection from another component."""
        return any(
            queue.id not in self._node.connections.loops for queue in self._node.connections.inputs
        )


class ProcessorNode:
    """`ComponentProtocol` for one processor.

    Its mutex protects the sum of its sessions' counts, because sessions end on several threads, and
    the current instance, because a start may be abandoned while it ends. An abandoned instance can
    record no wait.

    Attributes:
        plan: Plan of the processor.
        connections: Its connections.
        state: Its persistent state.
        services: Services of its sessions.
        signals: The scheduler.
        waits: Waits of all processors, by id.
        refusal: Returns why the owner of the flow may not run a processor; empty: it may.
    """

    def __init__(
        self,
        plan: ProcessorPlan,
        connections: ComponentConnections,
        state: StateManager,
        services: SessionServices,
        signals: SchedulerSignals,
        waits: WaitTable,
        refusal: Callable[[str], str] = lambda _processor_id: "",
    ) -> None:
        self.plan = plan
        self.connections = connections
        self.state = state
        self.services = services
        self.signals = signals
        self.waits = waits
        self.refusal = refusal
        self._instance: _Instance | None = None
        self._starting: _Instance | None = None
        self._open: set[SessionTransaction] = set()
        self._mutex = threading.Lock()
        self._done = IDLE

    @property
    def statistics(self) -> SessionStatistics:
        """Return the counts of its sessions since it was created."""
        return self._done

    def current_wait(self) -> DependencyWait | None:
        """Return its wait for a dependency; end the wait and return None if its inputs are empty.

        The scheduler ends it, too, when it checks for work. It does not check while the outputs are
        full, and the wait must not continue with FlowFiles that arrive meanwhile.
        """
        self._end_wait_without_input()
        return self.waits.get(self.plan.identity.id)

    def _end_wait_without_input(self) -> None:
        """End its wait if its FlowFiles were dropped or expired."""
        instance, own_id = self._instance, self.plan.identity.id
        # Checked without the mutex: the scheduler calls this often, and waits are rare.
        if self.waits.get(own_id) is None or instance is None or not instance.has_input():
            return
        with self._mutex:  # a session returns its FlowFiles before it records its failure
            if all(one.size.is_empty for one in self.connections.inputs):
                self.waits.ended(own_id)

    def end_wait(self) -> None:
        """End its wait, unless it runs."""
        with self._mutex:
            if self._instance is None:
                self.waits.ended(self.plan.identity.id)

    def record_wait(self, instance: _Instance, error: Unavailable, tries: int | None) -> None:
        """Record a failed try of an instance, unless the instance was abandoned."""
        if error.dependency is Dependency.OTHER:
            return
        with self._mutex:
            if instance is self._instance or instance is self._starting:
                self.waits.failed(self.plan.identity.id, error, tries=tries)

    def has_work(self, now_ms: int) -> bool:
        """Return whether a trigger would find something to do."""
        instance = self._instance
        if instance is None:
            return False
        inputs = self.connections.input_states(now_ms)
        if not any(one.available for one in inputs):
            self._end_wait_without_input()
        return has_work(inputs, when_empty=instance.processor.triggers_when_empty)

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, epoch ms; None if there is none."""
        return self.connections.next_due_ms()

    def is_open(self) -> bool:
        """Return whether its outputs have room."""
        instance = self._instance
        if instance is None:
            return False
        return is_open(
            self.connections.output_states(instance.relationships),
            any_is_enough=instance.processor.triggers_when_any_open,
        )

    def problems(self) -> Sequence[str]:
        """Return the errors that keep it from running."""
        refused = self.refusal(self.plan.identity.id)
        if refused:
            return [refused]
        try:
            return [str(one) for one in self.plan.kind().problems(self.plan.properties())]
        except PenstockError as error:
            return [str(error)]

    def on_scheduled(self) -> None:
        """Create and prepare an instance.

        Raises:
            InvalidConfiguration: Its properties are invalid.
            PenstockError: A parameter is missing. Exceptions of the processor are also raised.
        """
        instance = _Instance(self, self.plan.kind().configured(self.plan.properties()))
        self._starting = instance
        try:
            instance.processor.on_scheduled(instance.context)
        except BaseException as error:
            if isinstance(error, Unavailable):
                self.record_wait(instance, error, None)
            if self._starting is instance:
                raise
            # The caller no longer waits for this start; raising would undo the start of another
            # instance.
            instance.context.log.warning("the abandoned start raised %s", error_text(error))
            return
        with self._mutex:
            is_awaited = self._starting is instance
            if is_awaited:
                self._starting, self._instance = None, instance
                if not instance.unavailable_reports:
                    self.waits.ended(self.plan.identity.id)  # of the starts that failed
        if not is_awaited:
            instance.let_go()

    def trigger(self, run: ComponentRun) -> RunOutcome:
        """Do one unit of work in a session, and commit it; repeat as the run allows."""
        instance = self._instance
        if instance is None:
            return NOTHING_DONE
        yields = instance.yields
        if not self._has_worked(instance, run):
            return NOTHING_DONE
        while (
            run.repeats(yielded=instance.yields != yields)
            and self._has_more()
            and self._has_worked(instance, run)
        ):
            pass
        return WORKED

    def _has_more(self) -> bool:
        """Return whether another trigger would find work and room."""
        return self.has_work(self.services.clock.now_ms()) and self.is_open()

    def _has_worked(self, instance: _Instance, run: ComponentRun) -> bool:
        """Trigger it in a session; return whether it did any work."""
        batching = instance.processor.supports_batching and run.duration_ms > 0
        transaction = SessionTransaction(instance.session_context, self.services, batching=batching)
        self._open.add(transaction)
        reports = instance.unavailable_reports
        try:
            if run.is_terminated:
                return False  # `on_terminated` may have missed this session
            self._work(instance, transaction, run, batching=batching)
        except BaseException as error:
            if isinstance(error, Unavailable):
                instance.report_unavailable(error, None)
            raise
        finally:
            transaction.calls.end()
            self._open.discard(transaction)
            done = transaction.statistics
            with self._mutex:
                self._done += done
        worked = done is not IDLE
        # A run that found nothing to do may not have used the dependency; a source always does.
        if instance.unavailable_reports == reports and (worked or not instance.has_input()):
            self.waits.ended(self.plan.identity.id)
        return worked

    def on_unscheduled(self) -> None:
        """Notify the instance that no new trigger begins."""
        instance = self._instance
        if instance is not None:
            instance.is_wanted = False
            instance.processor.on_unscheduled(instance.context)

    def on_stopped(self) -> None:
        """Have the instance release its resources."""
        instance, self._instance = self._instance, None
        if instance is not None:  # otherwise a start failed, which is tried again
            self.end_wait()
            instance.processor.on_stopped(instance.context)

    def on_terminated(self) -> None:
        """Terminate its sessions, and abandon its instance."""
        with self._mutex:
            instances = (self._instance, self._starting)
            self._instance = self._starting = None
        for instance in instances:
            if instance is not None:
                instance.is_wanted = False
        for transaction in tuple(self._open):
            transaction.calls.terminate()

    def _work(
        self,
        instance: _Instance,
        transaction: SessionTransaction,
        run: ComponentRun,
        *,
        batching: bool,
    ) -> None:
        session = ProcessSession(transaction)
        yields = instance.yields
        try:
            while True:
                instance.processor.on_trigger(instance.context, session)
                transaction.commit()
                if (
                    not batching
                    or not run.may_continue(
                        yielded=instance.yields != yields,
                        loop_is_full=self.connections.loop_is_full(),
                    )
                    or not self._has_more()
                ):
                    break
        except BaseException as error:
            with suppress(Terminated):
                transaction.fail(error)
            raise
        finally:
            if batching and not transaction.calls.is_terminated:
                # Earlier checkpoints are valid even if a later trigger failed.
                transaction.flush()
