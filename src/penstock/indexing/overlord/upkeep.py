"""What operators look at and change beside tasks: locks, automatic compaction, segments.

Any thread. Owns nothing but what it remembers of segments, so that a question about compaction
reads only what changed since the one before it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict
from penstock.core.intervals import format_time
from penstock.indexing.overlord.duties.compaction import CompactionConfigs, CompactionDuty

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.core.intervals import Interval
    from penstock.indexing.lockbox.model import HeldLock, LockPolicy
    from penstock.indexing.overlord.duties.compactionplan import CompactionPlan
    from penstock.indexing.overlord.term import LeaderTerm
    from penstock.storage.metadata import MetadataStore

# Looking at the active tasks takes no longer: one created later than this had another clock.
_LOOK_MS_MAX: Final = 1_000


class Upkeep:
    """The term, as far as operators keep it up. Every call raises NotLeading if there is none.

    The mutex is held while a compaction plan is made: the plan's memory of segments is for one
    thread at a time, and the second of two questions at once finds what the first has read.

    Args:
        lead: Returns the term, or raises NotLeading.
    """

    def __init__(self, lead: Callable[[], LeaderTerm]) -> None:
        self._lead = lead
        self._mutex = threading.Lock()
        self._planner: tuple[LeaderTerm, CompactionDuty] | None = None

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, which refuses what is written after the term is over."""
        return self._lead().metadata

    def locks(self, datasource: str) -> Future[list[HeldLock]]:
        """Return who holds what of a datasource."""
        return self._lead().lockboxes.locks(datasource)

    def locked_intervals(
        self, policies: Sequence[LockPolicy]
    ) -> Future[Mapping[str, list[Interval]]]:
        """Return the times of each datasource that are locked for who asks, disjoint, in order."""
        return self._lead().lockboxes.locked_intervals(policies)

    def free_places(self, datasource: str, allocated: Interval) -> int:
        """Free places that were allocated within a time and that nobody will publish in. Blocks.

        Returns how many.

        Raises:
            Conflict: A task that is active may yet publish in them.
            Unavailable: The metadata store does not answer.
        """
        term = self._lead()
        # Asked first: what a task gets that comes after the look at them is not older than this.
        now_ms = term.tools.clock.now_ms()
        active = term.queue.index.of_datasource(datasource).values()
        # Of one that began by the clock of a leader that was ahead nobody knows when it did.
        ahead_ms = now_ms + _LOOK_MS_MAX
        in_the_way = [one for one in active if not allocated.end_ms <= one.created_ms <= ahead_ms]
        if in_the_way:
            oldest = min(in_the_way, key=lambda one: one.created_ms)
            raise Conflict(
                f"task {oldest.task.id} of {datasource} has been active since"
                f" {format_time(oldest.created_ms)} and may publish in its places: end the"
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
        """Return what automatic compaction would do under these configurations. Blocks.

        Args:
            configs: The configurations, all of them: of others it forgets what it knows.
            of: The datasources, suspended or not; None: all that are compacted.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        term = self._lead()
        with self._mutex:
            if self._planner is None or self._planner[0] is not term:
                self._planner = (term, CompactionDuty(term.tools))
            return self._planner[1].plans(configs, of)
