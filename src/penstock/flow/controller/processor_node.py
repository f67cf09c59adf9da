"""Processor of a flow as the scheduler runs it: its instance, its sessions, and their counts.

Owns one processor's instance from a start to its stop, and its open sessions. Does not own when it
runs (`scheduling`), nor its queues (`queueing`).

Invariants: an instance serves one start. Threads of a terminated processor keep the old instance,
and their sessions raise. A trigger ends with its session committed or rolled back, whatever it
raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.flow.errors import Terminated
from penstock.flow.processor.context import ProcessContext, ProcessorIdentity
from penstock.flow.processor.processor import Processor
from penstock.flow.processor.property_types import PropertyValue
from penstock.flow.queue.queue_size import Availability
from penstock.flow.scheduling.activity import call, told
from penstock.flow.scheduling.readiness import Input, Output, has_work, is_open
from penstock.flow.scheduling.schedulable import NOTHING_DONE, WORKED, Outcome, Run
from penstock.flow.session.services import SessionServices, Wiring
from penstock.flow.session.session import ProcessSession
from penstock.flow.session.statistics import IDLE, SessionStatistics
from penstock.flow.session.transaction import SessionTransaction

if TYPE_CHECKING:
    from penstock.flow.processor_state import StateManager
    from penstock.flow.queue.queue import FlowFileQueue
    from penstock.flow.relationships import RelationshipRetry


@dataclass(frozen=True)
class Ends:
    """Connections of a component.

    Attributes:
        inputs: Queues of incoming connections.
        outputs: Queues of outgoing connections, by relationship.
    """

    inputs: Sequence[FlowFileQueue] = ()
    outputs: Mapping[str, Sequence[FlowFileQueue]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        away = {queue.id for queues in self.outputs.values() for queue in queues}
        object.__setattr__(self, "loops", frozenset(q.id for q in self.inputs if q.id in away))

    loops: frozenset[str] = field(init=False)

    def looked_at(self, now_ms: int) -> list[Input]:
        """Return the current state of the inputs."""
        return [
            Input(queue.availability(now_ms) is Availability.AVAILABLE, queue.id in self.loops)
            for queue in self.inputs
        ]

    def rooms(self, relationships: Sequence[str]) -> list[list[Output]]:
        """Return the current state of the connections of each relationship."""
        return [
            [
                Output(queue.is_full, queue.id in self.loops)
                for queue in self.outputs.get(relationship, ())
            ]
            for relationship in relationships
        ]

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, epoch ms; None if there is none."""
        due = (queue.next_due_ms() for queue in self.inputs)
        return min((one for one in due if one is not None), default=None)

    def loop_is_full(self) -> bool:
        """Return whether a connection of the component to itself is full."""
        return any(queue.is_full for queue in self.inputs if queue.id in self.loops)


@dataclass(frozen=True, slots=True)
class UnitPlan:
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


class _Living:
    """Instance of a processor for one start, and the host of its context."""

    def __init__(self, unit: ProcessorUnit, processor: Processor) -> None:
        self.processor = processor
        self.relationships = tuple(processor.relationships())
        self.is_wanted = True
        self.yields = 0
        self._unit = unit
        plan = unit.plan
        self.wiring = Wiring(
            plan.identity.id,
            unit.state,
            unit.ends.inputs,
            unit.ends.outputs,
            frozenset(self.relationships),
            plan.auto_terminated,
            plan.retries,
            processor.triggers_when_any_open,
            plan.identity.penalty_ms,
            plan.identity.yield_ms,
            self.yield_for,
        )
        self.context = ProcessContext(plan.identity, self, unit.state, unit.services.clock)

    def let_go(self) -> None:
        """Have the instance release its resources, even if its start was abandoned meanwhile."""
        processor = self.processor
        hooks = {"on_unscheduled": processor.on_unscheduled, "on_stopped": processor.on_stopped}
        for name, hook in hooks.items():
            for problem in call(name, partial(hook, self.context)).problems:
                self.context.log.warning("after an abandoned start, %s", problem)

    def yield_for(self, wait_ms: int) -> None:
        """Do not trigger the processor for this time."""
        self.yields += 1
        self._unit.leave_alone(wait_ms)

    def wake(self) -> None:
        """Check for work, because new input has arrived."""
        self._unit.wake()

    def is_scheduled(self) -> bool:
        """Return whether the processor should continue to run."""
        return self.is_wanted

    def is_connected(self, relationship: str) -> bool:
        """Return whether this relationship has an outgoing connection."""
        return bool(self._unit.ends.outputs.get(relationship))

    def is_available(self, relationship: str) -> bool:
        """Return whether every connection of this relationship has room."""
        return not any(queue.is_full for queue in self._unit.ends.outputs.get(relationship, ()))

    def has_input(self) -> bool:
        """Return whether the processor has an incoming connection from another component."""
        return any(queue.id not in self._unit.ends.loops for queue in self._unit.ends.inputs)


class ProcessorUnit:
    """`Schedulable` for one processor.

    Its mutex protects the sum of its sessions' counts, because sessions end on several threads, and
    the current instance, because a start may be abandoned while it ends.

    Attributes:
        plan: Plan of the processor.
        ends: Its connections.
        state: Its persistent state.
        services: Services of its sessions.

    Args:
        plan: Plan of the processor.
        ends: Its connections.
        state: Its persistent state.
        services: Services of its sessions.
        leave_alone: Tells the scheduler not to trigger it for some milliseconds.
        wake: Tells the scheduler to check for work.
    """

    def __init__(
        self,
        plan: UnitPlan,
        ends: Ends,
        state: StateManager,
        services: SessionServices,
        leave_alone: Callable[[int], None],
        wake: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.ends = ends
        self.state = state
        self.services = services
        self.leave_alone = leave_alone
        self.wake = wake
        self._living: _Living | None = None
        self._starting: _Living | None = None
        self._open: set[SessionTransaction] = set()
        self._mutex = threading.Lock()
        self._done = IDLE

    @property
    def statistics(self) -> SessionStatistics:
        """Return the counts of its sessions since it was created."""
        return self._done

    def has_work(self, now_ms: int) -> bool:
        """Return whether a trigger would find something to do."""
        living = self._living
        if living is None:
            return False
        return has_work(
            self.ends.looked_at(now_ms), when_empty=living.processor.triggers_when_empty
        )

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, epoch ms; None if there is none."""
        return self.ends.next_due_ms()

    def is_open(self) -> bool:
        """Return whether its outputs have room."""
        living = self._living
        if living is None:
            return False
        return is_open(
            self.ends.rooms(living.relationships),
            any_is_enough=living.processor.triggers_when_any_open,
        )

    def problems(self) -> Sequence[str]:
        """Return the errors that keep it from running."""
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
        living = _Living(self, self.plan.kind().configured(self.plan.properties()))
        self._starting = living
        try:
            living.processor.on_scheduled(living.context)
        except BaseException as error:
            if self._starting is living:
                raise
            # The caller no longer waits for this start; raising would undo the start of another
            # instance.
            living.context.log.warning("the abandoned start raised %s", told(error))
            return
        with self._mutex:
            is_awaited = self._starting is living
            if is_awaited:
                self._starting, self._living = None, living
        if not is_awaited:
            living.let_go()

    def trigger(self, run: Run) -> Outcome:
        """Do one unit of work in a session, and commit it; repeat as the run allows."""
        living = self._living
        if living is None:
            return NOTHING_DONE
        yields = living.yields
        if not self._has_worked(living, run):
            return NOTHING_DONE
        while run.repeats(yielded=living.yields != yields) and self._has_worked(living, run):
            pass
        return WORKED

    def _has_worked(self, living: _Living, run: Run) -> bool:
        """Trigger it in a session; return whether it did any work."""
        batching = living.processor.supports_batching and run.duration_ms > 0
        transaction = SessionTransaction(living.wiring, self.services, batching=batching)
        self._open.add(transaction)
        try:
            if run.is_terminated:
                return False  # `on_terminated` may have missed this session
            self._work(living, transaction, run, batching=batching)
        finally:
            transaction.calls.end()
            self._open.discard(transaction)
            done = transaction.statistics
            with self._mutex:
                self._done += done
        return done is not IDLE

    def on_unscheduled(self) -> None:
        """Notify the instance that no new trigger begins."""
        living = self._living
        if living is not None:
            living.is_wanted = False
            living.processor.on_unscheduled(living.context)

    def on_stopped(self) -> None:
        """Have the instance release its resources."""
        living, self._living = self._living, None
        if living is not None:
            living.processor.on_stopped(living.context)

    def on_terminated(self) -> None:
        """Terminate its sessions, and abandon its instance."""
        with self._mutex:
            given_up = (self._living, self._starting)
            self._living = self._starting = None
        for living in given_up:
            if living is not None:
                living.is_wanted = False
        for transaction in tuple(self._open):
            transaction.calls.terminate()

    def _work(
        self, living: _Living, transaction: SessionTransaction, run: Run, *, batching: bool
    ) -> None:
        session = ProcessSession(transaction)
        yields = living.yields
        try:
            while True:
                living.processor.on_trigger(living.context, session)
                transaction.commit()
                if not batching or not run.goes_on(
                    yielded=living.yields != yields, loop_is_full=self.ends.loop_is_full()
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
