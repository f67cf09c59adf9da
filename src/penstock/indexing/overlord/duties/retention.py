"""Retention: marks segments unused that the rules drop. Their files stay until a kill task."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import counted
from penstock.indexing.specs.retention_rules import can_drop, dropped, readable_rules
from penstock.storage.metadata.tables.configuration import DEFAULT_RULES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.specs.retention_rules import Rule
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.metadata.rows.cluster import RuleRow

_log = logging.getLogger(__name__)


class RetentionDuty:
    """Applies the retention rules. On its lane.

    Args:
        metadata: The store of segments and rules.
        clock: Measures the age of segments.
        interval_ms: Period of the duty.
    """

    name = "retention"

    def __init__(self, metadata: MetadataStore, clock: Clock, interval_ms: int = 60_000) -> None:
        self._metadata = metadata
        self._clock = clock
        self.interval_ms = interval_ms

    def run(self) -> None:
        """Mark segments unused that the rules drop now.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        stored = self._metadata.rules.every()
        if not stored:
            return
        rules = readable_rules(stored)
        now_ms = self._clock.now_ms()
        doomed = self._metadata.segment_overviews.read(
            lambda overview: dropped(overview.time_chunks(_droppable(rules)), rules, now_ms)
        )
        if doomed:
            count = self._metadata.segments.mark_unused_at(doomed)
            _log.info("the retention rules dropped %s", counted(count, "segment"))


class ChangedRules:
    """Applies changed rules within seconds, because users watch the effect of a change.

    Detecting a change takes one statement, applying the rules reads all time chunks. On its lane.

    Args:
        metadata: The store of the rules.
        retention: Applies the rules.
        interval_ms: Period of the duty.
    """

    name = "changed rules"

    def __init__(
        self, metadata: MetadataStore, retention: RetentionDuty, interval_ms: int = 3_000
    ) -> None:
        self._metadata = metadata
        self._retention = retention
        self._applied: Mapping[str, RuleRow] | None = None
        self.interval_ms = interval_ms

    def run(self) -> None:
        """Apply the rules if they changed; after a failure the next round applies them.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        # Read before they are applied, so that a change in between is detected the next time.
        stored = self._metadata.rules.every()
        if stored != self._applied:
            self._retention.run()
            self._applied = stored


def _droppable(rules: Mapping[str, Sequence[Rule]]) -> list[str] | None:
    """Return the datasources of which a rule may drop segments; None: all."""
    dropping = [name for name, own in rules.items() if any(can_drop(rule) for rule in own)]
    return None if DEFAULT_RULES in dropping else dropping
