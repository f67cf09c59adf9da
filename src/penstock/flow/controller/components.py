"""Components and connections of a running flow.

`FlowComponents` owns the set of components at the scheduler and the connections between them,
by id and by name, and changes to them. `FunnelNode` is the schedulable of a funnel or a port:
it moves FlowFiles in batches without changing them, and does not own its queues.

Threading: changed by the controller's thread; the values that other threads read are replaced
as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, NotFound, counted
from penstock.core.names import normalised
from penstock.core.similar_names import nearest
from penstock.core.waits import DependencyWait, WaitTable
from penstock.flow.controller.component_connections import (
    ComponentConnections,
    funnel_has_work,
    is_open,
)
from penstock.flow.controller.connection_queues import ConnectionListener
from penstock.flow.controller.flow_status import ComponentStatus, ConnectionStatus
from penstock.flow.controller.processor_node import ProcessorNode
from penstock.flow.controller.request_waits import answer
from penstock.flow.errors import Terminated
from penstock.flow.graph.flow_index import (
    ComponentKind,
    FlowIndex,
    PlacedComponent,
    PlacedConnection,
)
from penstock.flow.graph.source_locations import listed
from penstock.flow.processor_state import StateManager
from penstock.flow.relationships import Relationship
from penstock.flow.scheduling.component_protocol import (
    NOTHING_DONE,
    WORKED,
    ComponentRun,
    RunOutcome,
)
from penstock.flow.session.process_session import ProcessSession
from penstock.flow.session.services import SessionContext, SessionServices
from penstock.flow.session.session_transaction import SessionTransaction
from penstock.flow.session.statistics import IDLE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.core.clock import Clock
    from penstock.flow.controller.connection_queues import ConnectionQueues
    from penstock.flow.controller.cron_progress import CronProgress
    from penstock.flow.controller.flow_owner import FlowOwner
    from penstock.flow.controller.plans import FlowPlans
    from penstock.flow.graph.diff import FlowChange
    from penstock.flow.queue.queue import FlowFileQueue
    from penstock.flow.scheduling.component import ComponentStatistics
    from penstock.flow.scheduling.scheduler import Scheduler
    from penstock.flow.scheduling.strategy import ComponentSchedule


OUT: Final = Relationship("Everything.", name="out")

_BATCH: Final = 1_000
_BATCHES: Final = (
    10  # a trigger moves at most ten thousand FlowFiles, as in NiFi, so that others can run
)


class FunnelNode:
    """`ComponentProtocol` for a funnel or a port.

    Args:
        component_id: Id of the component.
        connections: Its connections; outgoing ones belong to the relationship `OUT`.
        state: Unused: it has no state.
        services: Services of sessions.
    """

    def __init__(
        self,
        component_id: str,
        connections: ComponentConnections,
        state: StateManager,
        services: SessionServices,
    ) -> None:
        self._connections = connections
        self._services = services
        names = frozenset([OUT.name])
        self._session_context = SessionContext(
            component_id, state, connections.inputs, connections.outputs, names
        )
        self._open: set[SessionTransaction] = set()

    def has_work(self, now_ms: int) -> bool:
        """Return whether FlowFiles can be moved."""
        outputs = [one for rooms in self._connections.output_states([OUT.name]) for one in rooms]
        return funnel_has_work(self._connections.input_states(now_ms), outputs)

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, epoch ms; None if there is none."""
        return self._connections.next_due_ms()

    def is_open(self) -> bool:
        """Return whether its output has room."""
        return is_open(self._connections.output_states([OUT.name]))

    def problems(self) -> Sequence[str]:
        """Return an empty sequence: it has no configuration."""
        return ()

    def on_scheduled(self) -> None:
        """Do nothing."""

    def trigger(self, run: ComponentRun) -> RunOutcome:
        """Move waiting FlowFiles."""
        moved = 0
        transaction = SessionTransaction(self._session_context, self._services)
        self._open.add(transaction)
        try:
            session = ProcessSession(transaction)
            for _ in range(_BATCHES):
                flowfiles = [] if run.is_terminated else session.get_many(_BATCH)
                if not flowfiles:
                    break
                session.transfer(flowfiles, OUT)
                transaction.commit()
                moved += len(flowfiles)
                if not self.is_open():
                    break
        finally:
            # After a commit the rollback does nothing; after a failure it gives back what was
            # taken.
            with suppress(Terminated):
                transaction.rollback()
            self._open.discard(transaction)
        return WORKED if moved else NOTHING_DONE

    def on_unscheduled(self) -> None:
        """Do nothing."""

    def on_stopped(self) -> None:
        """Do nothing."""

    def on_terminated(self) -> None:
        """Terminate its sessions."""
        for transaction in tuple(self._open):
            transaction.calls.terminate()


@dataclass(frozen=True)
class _CurrentFlow:
    """Index of the current flow, by id and by name."""

    components: Mapping[str, PlacedComponent] = field(default_factory=dict)
    connections: Mapping[str, PlacedConnection] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    connection_names: Mapping[str, str] = field(default_factory=dict)


class FlowComponents:
    """Components and connections of one flow.

    Args:
        scheduler: Runs the components.
        queues: Queues of the connections.
        services: Services of sessions.
        cron_progress: Handled firing times of CRON driven components.
        owner: For whom the flow acts.

    Attributes:
        owner: For whom the flow acts.
        schedules: Schedule of each component, by its id.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        queues: ConnectionQueues,
        services: SessionServices,
        cron_progress: CronProgress,
        owner: FlowOwner,
    ) -> None:
        self.owner: Final = owner
        self._scheduler = scheduler
        self._queues = queues
        self._services = services
        self._cron_progress = cron_progress
        self.schedules: Mapping[str, ComponentSchedule] = {}
        self._known = _CurrentFlow()
        self._units: dict[str, ProcessorNode | FunnelNode] = {}
        self._waits = WaitTable(services.clock)
        self._states: dict[str, StateManager] = {}

    @property
    def clock(self) -> Clock:
        """Return the clock of the flow."""
        return self._services.clock

    @property
    def component_ids(self) -> set[str]:
        """Return the ids of all processors, funnels and ports."""
        return set(self._known.components)

    def name_of(self, component_id: str) -> str:
        """Return the name of a component for messages."""
        found = self._known.components.get(component_id)
        return component_id if found is None else f"{found.kind} {found}"

    def names_of(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the names of components and connections, without those that are unknown."""
        known = self._known
        found = ((one, known.components.get(one) or known.connections.get(one)) for one in ids)
        return {one: str(placed) for one, placed in found if placed is not None}

    def is_enabled(self, component_id: str) -> bool:
        """Return whether a component may be started."""
        found = self._known.components.get(component_id)
        return found is not None and (found.processor is None or found.processor.enabled)

    def targets(self, target: str | None) -> Sequence[str]:
        """Return the ids of the components that a user specified.

        Args:
            target: Id or name of a component, or of a group with all its components; None: all.

        Raises:
            NotFound: Nothing in the flow has this name.
        """
        known = self._known
        if target is None:
            return tuple(known.components)
        if target in known.components:
            return (target,)
        found = known.names.get(normalised(target.strip("/")))
        if found is None:
            raise NotFound(f"unknown component or group {target!r}{nearest(target, known.names)}")
        return found

    def component_id(self, target: str) -> str:
        """Return the id of the single component that a user specified.

        Raises:
            NotFound: No component has this name, or it is a group.
        """
        ids = self.targets(target)
        if len(ids) != 1:
            raise NotFound(f"{target} is a group: specify one processor in it")
        return ids[0]

    def connection_id(self, target: str) -> str:
        """Return the id of a connection that a user specified by its id or name.

        Raises:
            NotFound: No connection has this id or name.
        """
        known = self._known
        if target in known.connections:
            return target
        found = known.connection_names.get(_plain(target))
        if found is None:
            names = [str(one) for one in known.connections.values()]
            raise NotFound(f"unknown connection {target!r}{nearest(target, names)}")
        return found

    def touched(self, changes: Sequence[FlowChange], index: FlowIndex) -> set[str]:
        """Return the components, including funnels, whose connections change.

        Args:
            changes: Changes of the flow.
            index: The new flow.
        """
        concerned = {
            change.id for change in changes if change.component is ComponentKind.CONNECTION
        }
        found = set()
        for one in (*self._known.connections.values(), *index.connections):
            if one.id in concerned:
                found |= {end.id for end in (one.source, one.destination) if end is not None}
        return found & self.component_ids

    def refuse_losses(self, changes: Sequence[FlowChange]) -> None:
        """Check that no connection to remove contains FlowFiles.

        Raises:
            Conflict: One does.
        """
        going = [
            (change.name, self._queues.find(change.id).size.count)
            for change in changes
            if change.must_be_empty and change.component is ComponentKind.CONNECTION
        ]
        held = [
            f"connection {name} contains {counted(count, 'FlowFile')}"
            for name, count in going
            if count
        ]
        if held:
            raise Conflict(
                f"{listed(held)}: a connection must be empty before it is removed; let its "
                "FlowFiles be processed, or drop them with penstock flow queue drop"
            )

    def change(self, plans: FlowPlans, stopped: set[str]) -> None:
        """Change the flow.

        Affected components have stopped, and connections to remove are empty.
        """
        before, after = self._known, _known(plans.index)
        # All requests are sent first and awaited at the end: the scheduler keeps their order.
        requests: list[Future[None]] = []
        for one in (stopped | (before.components.keys() - after.components.keys())) & set(
            self._units
        ):
            requests.append(self._scheduler.remove(one))
            del self._units[one]
            self._waits.ended(one)
        for one in before.components.keys() - after.components.keys():
            self._states.pop(one, None)
        self._change_queues(before, after, plans)
        self._known = after
        for group in plans.index.groups:
            self._scheduler.limit_group(group.id, group.group.max_concurrent_tasks)
        for one, placed in after.components.items():
            unit = self._units.get(one)
            if unit is None:
                requests += self._add(placed, plans)
                continue
            if isinstance(unit, ProcessorNode):
                unit.plan = plans.units[one]  # of a running processor: for its next start
            if plans.schedules[one] != self.schedules[one]:
                requests.append(self._scheduler.reschedule(one, plans.schedules[one]))
        self.schedules = plans.schedules
        for future in requests:
            answer(future)

    def end_wait_after(self, stopped: Future[None], component_id: str) -> None:
        """End the wait of a component when a stop or a single run ended, unless it runs.

        No hook of the component is called if it could not start, or if it was terminated.
        """
        unit = self._units.get(component_id)
        if isinstance(unit, ProcessorNode):
            stopped.add_done_callback(lambda _stopped: unit.end_wait())

    def waits(self) -> tuple[DependencyWait, ...]:
        """Return the dependencies that processors wait for, with the processors' names."""
        return tuple(wait for one in self._waits.all() for wait in self._waits_of(one.work))

    def _waits_of(self, component_id: str) -> tuple[DependencyWait, ...]:
        """Return the dependency that a component waits for, if any, with its name as the work."""
        unit = self._units.get(component_id)
        wait = unit.current_wait() if isinstance(unit, ProcessorNode) else None
        return () if wait is None else (replace(wait, work=self.name_of(component_id)),)

    def component_statuses(
        self, scheduling: Iterable[ComponentStatistics]
    ) -> list[ComponentStatus]:
        """Return the status of each component of which the scheduler has statistics."""
        known, by_id = self._known, {one.id: one for one in scheduling}
        found = []
        for one, placed in known.components.items():
            unit = self._units.get(one)
            if one not in by_id or unit is None:
                continue
            done = unit.statistics if isinstance(unit, ProcessorNode) else IDLE
            kind = placed.processor.type if placed.processor is not None else ""
            found.append(
                ComponentStatus(
                    one,
                    placed.kind,
                    str(placed),
                    kind,
                    by_id[one],
                    done,
                    by_id[one].problems,
                    self._waits_of(one),
                )
            )
        return found

    def placed(self, component_id: str) -> PlacedComponent:
        """Return the definition of a component.

        Raises:
            NotFound: It was removed.
        """
        found = self._known.components.get(component_id)
        if found is None:
            raise NotFound(f"component {component_id} was removed from the flow")
        return found

    def ends_of(self, component_id: str) -> tuple[list[str], list[str]]:
        """Return the ids of the incoming and of the outgoing connections of a component."""
        incoming, outgoing = [], []
        for one in self._known.connections.values():
            if one.destination is not None and one.destination.id == component_id:
                incoming.append(one.id)
            if one.source is not None and one.source.id == component_id:
                outgoing.append(one.id)
        return incoming, outgoing

    def state_of(self, component_id: str) -> Mapping[str, str]:
        """Return the persistent state of a component.

        Raises:
            CorruptData: The journal contains another value in its place.
        """
        state = self._states.get(component_id)
        return {} if state is None else state.get()

    def clear_state(self, component_id: str) -> int:
        """Delete the persistent state of a component that does not run; return its entries.

        Raises:
            Unavailable: It could not be written; the state is unchanged.
        """
        state = self._states.get(component_id)
        entries = 0 if state is None else len(state.get())
        if state is not None and entries:
            state.clear(durable=True)
        return entries

    def connection_statuses(self, only: Iterable[str] | None = None) -> list[ConnectionStatus]:
        """Return the status of each connection, or of some."""
        known, queues = self._known, self._queues.queues
        found = []
        for one in known.connections if only is None else only:
            placed = known.connections.get(one)
            if placed is None:
                continue
            queue, options = queues.get(one), self._queues.options.get(one)
            if queue is None or options is None:
                continue  # it is just being removed
            found.append(
                ConnectionStatus(
                    one,
                    str(placed),
                    placed.source.id if placed.source else "",
                    placed.destination.id if placed.destination else "",
                    queue.size,
                    options,
                    queue.is_full,
                    self._queues.expired.get(one, 0),
                    queue.statistics(),
                )
            )
        return found

    def _change_queues(self, before: _CurrentFlow, after: _CurrentFlow, plans: FlowPlans) -> None:
        for one in self._queues.queues.keys() - after.connections.keys():
            self._queues.remove(one)
        for one, placed in after.connections.items():
            plan = plans.queues[one]
            old = before.connections.get(one)
            if old is None:
                queue = self._queues.add(one, plan.options, plan.prioritizers)
            else:
                same = old.connection.prioritizers == placed.connection.prioritizers
                queue = self._queues.change(one, plan.options, None if same else plan.prioritizers)
            assert placed.source is not None, "validated"
            assert placed.destination is not None, "validated"
            queue.listener = ConnectionListener(
                self._scheduler, placed.source.id, placed.destination.id
            )

    def _add(self, placed: PlacedComponent, plans: FlowPlans) -> list[Future[None]]:
        one = placed.id
        state = self._states.setdefault(one, StateManager(one, self._services.repository))
        connections = self._connections_of(placed, plans.index)
        schedule = plans.schedules[one]
        unit: ProcessorNode | FunnelNode
        if placed.processor is None:
            unit = FunnelNode(one, connections, state, self._services)
        else:
            unit = ProcessorNode(
                *(plans.units[one], connections, state, self._services),
                *(self._scheduler, self._waits, self.owner.problem),
            )
        served_ms = self._cron_progress.served_ms(one, schedule)
        requests = [self._scheduler.add(one, unit, replace(schedule, last_fired_ms=served_ms))]
        self._units[one] = unit
        if not self.is_enabled(one):
            requests.append(self._scheduler.disable(one))
        return requests

    def _connections_of(self, placed: PlacedComponent, index: FlowIndex) -> ComponentConnections:
        inputs = [self._queues.find(one.id) for one in index.incoming.get(placed.id, ())]
        outputs: dict[str, list[FlowFileQueue]] = {}
        for connection in index.outgoing.get(placed.id, ()):
            queue = self._queues.find(connection.id)
            names = connection.connection.relationships or (OUT.name,)
            for name in names:
                outputs.setdefault(name, []).append(queue)
        return ComponentConnections(inputs, outputs)


def _known(index: FlowIndex) -> _CurrentFlow:
    names: dict[str, tuple[str, ...]] = {}
    for group in index.groups:
        inside = tuple(one.id for one in index.components if group.id in one.group.ids)
        names[normalised("/".join(group.names))] = inside
    for component in index.components:
        names[normalised(str(component))] = (component.id,)
    connection_names: dict[str, str] = {}
    for connection in index.connections:
        connection_names.setdefault(_plain(str(connection)), connection.id)
    return _CurrentFlow(
        {one.id: one for one in index.components},
        {one.id: one for one in index.connections},
        names,
        connection_names,
    )


def _plain(name: str) -> str:
    """Return a connection's name for comparison: an arrow may be written `->`."""
    return "→".join(part.strip() for part in normalised(name).replace("->", "→").split("→"))
