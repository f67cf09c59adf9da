"""Up to when the firing times of CRON driven components are served, kept over restarts.

Owns these times in the journal of the FlowFile repository. Does not own firing (`scheduling`).

They are written now and then, not at each firing: after a kill a component that catches up may so
serve a time twice that lies less than that interval back, and never misses one.

Invariants: a time counts for the expression that it was served by, and no other; a component that
was stopped, and so missed nothing, has none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.core.errors import PenstockError, counted
from penstock.flow.repository.changes import Changes
from penstock.flow.scheduling.statistics import ComponentStatistics
from penstock.flow.scheduling.strategy import Schedule
from penstock.flow.state import StateStore

_logger = logging.getLogger(__name__)

_PREFIX: Final = "fired:"  # no processor's id begins so


class _Kept(msgspec.Struct, frozen=True):
    """One component's time, as it is in the journal."""

    expression: str
    zone: str
    served_ms: int


class Firings:
    """The times of all components. Used by the controller's thread.

    Args:
        store: Where they are durable.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._known: dict[str, _Kept | None] = {}

    def served_ms(self, component_id: str, schedule: Schedule) -> int | None:
        """Return up to when firing times are served, epoch ms; None: look at the future only."""
        kept = self._find(component_id)
        if schedule.cron is None or kept is None or not _is_of(kept, schedule):
            return None
        return kept.served_ms

    def note(
        self,
        components: Iterable[ComponentStatistics],
        schedules: Mapping[str, Schedule],
        *,
        ends_in_order: bool,
    ) -> None:
        """Keep what changed, in one commit; what cannot be written is tried the next time.

        Args:
            components: What the scheduler says of them.
            schedules: Of all components, by id.
            ends_in_order: What runs now will end. Otherwise it may be killed, and is not served.
        """
        changed: dict[str, _Kept] = {}
        for one in components:
            schedule = schedules.get(one.id)
            if schedule is None or schedule.cron is None or one.served_ms is None:
                continue
            if one.active_tasks and not ends_in_order:
                continue
            cron, before = schedule.cron, self._find(one.id)
            after = _Kept(cron.text, str(cron.zone), one.served_ms)
            if after != before:
                changed[one.id] = after
        self._write(changed)

    def forget(self, component_ids: Iterable[str]) -> None:
        """Forget the times of components that are stopped or gone."""
        self._write({one: None for one in component_ids if self._find(one) is not None})

    def _find(self, component_id: str) -> _Kept | None:
        if component_id not in self._known:
            data = self._store.state(f"{_PREFIX}{component_id}")
            try:
                kept = None if data is None else msgspec.json.decode(data, type=_Kept)
            except msgspec.MsgspecError:
                kept = None  # of another Penstock: the future only
            self._known[component_id] = kept
        return self._known[component_id]

    def _write(self, changed: Mapping[str, _Kept | None]) -> None:
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
                "firing times of %s are not kept: %s", counted(len(changed), "component"), error
            )
            return
        self._known.update(changed)


def _is_of(kept: _Kept, schedule: Schedule) -> bool:
    cron = schedule.cron
    return cron is not None and (kept.expression, kept.zone) == (cron.text, str(cron.zone))
