"""Funnel or port of a process group: moves FlowFiles without changing them.

Owns the moving, in batches. Does not own its queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from penstock.flow.controller.unit import Ends
from penstock.flow.errors import Terminated
from penstock.flow.relationships import Relationship
from penstock.flow.scheduling.schedulable import NOTHING_DONE, WORKED, Outcome, Run
from penstock.flow.scheduling.work import funnel_has_work, is_open
from penstock.flow.session.services import SessionServices, Wiring
from penstock.flow.session.session import ProcessSession
from penstock.flow.session.transaction import Transaction
from penstock.flow.state import StateManager

OUT: Final = Relationship("Everything.", name="out")

_BATCH: Final = 1_000
_BATCHES: Final = (
    10  # a trigger moves at most ten thousand FlowFiles, as in NiFi, so that others can run
)


class Junction:
    """`Schedulable` for a funnel or a port.

    Args:
        component_id: Id of the component.
        ends: Its connections; outgoing ones belong to the relationship `OUT`.
        state: Unused: it has no state.
        services: Services of sessions.
    """

    def __init__(
        self, component_id: str, ends: Ends, state: StateManager, services: SessionServices
    ) -> None:
        self._ends = ends
        self._services = services
        names = frozenset([OUT.name])
        self._wiring = Wiring(component_id, state, ends.inputs, ends.outputs, names)
        self._open: set[Transaction] = set()

    def has_work(self, now_ms: int) -> bool:
        """Return whether FlowFiles can be moved."""
        outputs = [one for rooms in self._ends.rooms([OUT.name]) for one in rooms]
        return funnel_has_work(self._ends.looked_at(now_ms), outputs)

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, epoch ms; None if there is none."""
        return self._ends.next_due_ms()

    def is_open(self) -> bool:
        """Return whether its output has room."""
        return is_open(self._ends.rooms([OUT.name]))

    def problems(self) -> Sequence[str]:
        """Return an empty sequence: it has no configuration."""
        return ()

    def on_scheduled(self) -> None:
        """Do nothing."""

    def trigger(self, run: Run) -> Outcome:
        """Move waiting FlowFiles."""
        moved = 0
        transaction = Transaction(self._wiring, self._services)
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
