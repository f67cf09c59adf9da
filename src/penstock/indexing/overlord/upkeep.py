"""Administration beside tasks: locks, automatic compaction, segments.

Any thread. Its only state is a cache of segments, so that a compaction plan reads only what changed
since the one before.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict
from penstock.core.intervals import format_time
from penstock.indexing.overlord.compaction.duty import CompactionConfigs, CompactionDuty

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.model import HeldLock, LockPolicy
    from penstock.indexing.overlord.duties.compactionplan import CompactionPlan
    from penstock.indexing.overlord.term import LeaderTerm
    from penstock.storage.metadata import MetadataStore

# Upper bound of the time to read the active tasks: a task created later had another clock.
_LOOK_MS_MAX: Final = 1_000


class Upkeep:
    """Administrative operations on the term. Every call raises NotLeading if there is none.

    The mutex is held while a compaction plan is made: the cache of segments is for one thread at a
    time, and the second of two concurrent calls uses what the first has read.

    Args:
        lead: Returns the term, or raises NotLeading.
    """

    def __init__(self, lead: Callable[[], LeaderTerm]) -> None:
        self._lead = lead
        self._mutex = threading.Lock()
        self._planner: tuple[LeaderTerm, CompactionDuty] | None = None

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, which refuses writes after the term is over."""
        return self._lead().metadata

    def locks(self, datasource: str) -> Future[list[HeldLock]]:
        """Return the locks of a datasource with their holders."""
        return self._lead().lockboxes.locks(datasource)

    def locked_intervals(
        self, policies: Sequence[LockPolicy]
    ) -> Future[Mapping[str, list[Interval]]]:
        """Return the locked times of each datasource for given policies, disjoint, in order."""
        return self._lead().lockboxes.locked_intervals(policies)

    def free_places(self, datasource: str, allocated: Interval) -> int:
        """Delete the unneeded pending segments that were allocated within an interval. Blocks.

        Returns the number of deleted ids.

        Raises:
            Conflict: An active task may still publish with them.
            Unavailable: The metadata store does not answer.
        """
        term = self._lead()
        # Read before the tasks, so that ids of a task that is added after the check are newer.
        now_ms = term.tools.clock.now_ms()
        active = term.queue.index.of_datasource(datasource).values()
        # If a former leader's clock was ahead, the creation time of its tasks is unknown.
        ahead_ms = now_ms + _LOOK_MS_MAX
        in_the_way = [one for one in active if not allocated.end_ms <= one.created_ms <= ahead_ms]
        if in_the_way:
            oldest = min(in_the_way, key=lambda one: one.created_ms)
            raise Conflict(
                f"task {oldest.task.id} of {datasource} has been active since"
                f" {format_time(oldest.created_ms)} and may use its pending segments: end the"
                " interval before that, or wait for the task"
            )
        return term.metadata.segments.delete_pending(
            datasource,
            created_from_ms=allocated.start_ms,
            created_before_ms=min(allocated.end_ms, now_ms),
        )

    def compaction_plans(
        self, configs: CompactionConfigs, of: Collection[str] | None = None
    ) -> Mapping[str, CompactionPlan]:
        """Return the plans of automatic compaction under these configurations. Blocks.

        Args:
            configs: All configurations; the cache of other datasources is deleted.
            of: The datasources, suspended or not; None: all with a configuration.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        term = self._lead()
        with self._mutex:
            if self._planner is None or self._planner[0] is not term:
                self._planner = (term, CompactionDuty(term.tools))
            return self._planner[1].plans(configs, of)
