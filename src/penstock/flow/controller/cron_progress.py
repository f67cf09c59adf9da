"""Firing times of CRON driven components that were handled, kept over restarts.

Owns these times in the journal of the FlowFile repository. Does not own firing (`scheduling`).

They are written at an interval, not at each firing. After a kill, a component that catches up may
repeat a firing within that interval, but never misses one.

Invariants: a time applies only to the expression for which it was recorded. A stopped component has
no time, because it misses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.core.errors import PenstockError, counted
from penstock.flow.processor_state import StateStore
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.scheduling.component import ComponentStatistics
from penstock.flow.scheduling.strategy import ComponentSchedule

_logger = logging.getLogger(__name__)

_PREFIX: Final = "fired:"  # no processor id starts with this


class _ServedTime(msgspec.Struct, frozen=True):
    """Stored time of one component."""

    expression: str
    zone: str
    served_ms: int


class CronProgress:
    """Times of all components; used by the controller's thread.

    Args:
        store: Stores the times durably.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._known: dict[str, _ServedTime | None] = {}

    def served_ms(self, component_id: str, schedule: ComponentSchedule) -> int | None:
        """Return the time of the last handled firing, epoch ms; None: only future ones count."""
        kept = self._find(component_id)
        if schedule.cron is None or kept is None or not _is_of(kept, schedule):
            return None
        return kept.served_ms

    def note(
        self,
        components: Iterable[ComponentStatistics],
        schedules: Mapping[str, ComponentSchedule],
        *,
        ends_in_order: bool,
    ) -> None:
        """Store the changed times, in one commit; a failed write is retried the next time.

        Args:
            components: Statistics of the scheduler.
            schedules: Schedules of all components, by id.
            ends_in_order: Whether current runs will finish. If not, they may be killed, and do not
                count as handled.
        """
        changed: dict[str, _ServedTime] = {}
        for one in components:
            schedule = schedules.get(one.id)
            if schedule is None or schedule.cron is None or one.served_ms is None:
                continue
            if one.active_tasks and not ends_in_order:
                continue
            cron, before = schedule.cron, self._find(one.id)
            after = _ServedTime(cron.text, str(cron.zone), one.served_ms)
            if after != before:
                changed[one.id] = after
        self._write(changed)

    def forget(self, component_ids: Iterable[str]) -> None:
        """Forget the times of components that are stopped or removed."""
        self._write({one: None for one in component_ids if self._find(one) is not None})

    def _find(self, component_id: str) -> _ServedTime | None:
        if component_id not in self._known:
            data = self._store.state(f"{_PREFIX}{component_id}")
            try:
                kept = None if data is None else msgspec.json.decode(data, type=_ServedTime)
            except msgspec.MsgspecError:
                kept = None  # of another version of Penstock: only future ones count
            self._known[component_id] = kept
        return self._known[component_id]

    def _write(self, changed: Mapping[str, _ServedTime | None]) -> None:
        if not changed:
            return
        states = {
            f"{_PREFIX}{one}": None if kept is None else msgspec.json.encode(kept)
            for one, kept in changed.items()
        }
        try:
            self._store.commit(Changes(states=states))
        except PenstockError as error:
            _logger.warning(
                "the firing times of %s could not be stored: %s",
                counted(len(changed), "component"),
                error,
            )
            return
        self._known.update(changed)


def _is_of(kept: _ServedTime, schedule: ComponentSchedule) -> bool:
    cron = schedule.cron
    return cron is not None and (kept.expression, kept.zone) == (cron.text, str(cron.zone))
