"""One agreement of a supervisor with all tasks of a group on an end.

On the overlord's mailbox; the peons are called on lanes, one for each task, so that one that does
not answer delays the others only for the duration of a call. All tasks are paused and return their
positions; the end is the furthest position in each stream partition and is sent to all. It is valid
once one task has accepted it: tasks that did not answer receive it later, and tasks that refuse it
have read past it.
Invariant: whatever the result, no task that answers stays paused.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.indexing.supervisor.talk.agreements import Stand, stand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.errors import PenstockError
    from penstock.indexing.errand import Calls
    from penstock.indexing.ports import TaskClient
    from penstock.indexing.sequences import Offsets

T = TypeVar("T")


def peon_lane(task_id: str) -> str:
    """Return the lane on which a task's peon is called."""
    return f"peon-{task_id}"


class Round:
    """An agreement on the end of tasks, or of their open sequence.

    Args:
        peons: Client of the tasks.
        calls: Runs calls on lanes.
        closing: The number and the start of the open sequence; None to end the tasks.
        ended: Called with the agreed end, if any, and the errors of tasks that did not accept it.
    """

    def __init__(
        self,
        peons: TaskClient,
        calls: Calls,
        closing: tuple[int, Offsets] | None,
        ended: Callable[[Offsets | None, dict[str, PenstockError]], None],
    ) -> None:
        self._peons = peons
        self._calls = calls
        self._closing = closing
        self._ended = ended
        self._stands: dict[str, Stand] = {}
        self._errors: dict[str, PenstockError] = {}
        self._took: set[str] = set()

    def start(self, task_ids: Iterable[str]) -> None:
        """Pause the tasks, and continue when all have answered or failed."""
        number = None if self._closing is None else self._closing[0]
        self._each(
            task_ids,
            lambda task_id: stand(self._peons, task_id, number),
            self._stands.__setitem__,
            self._decide,
        )

    def _decide(self) -> None:
        end = self._furthest()
        if end is None:
            for task_id in (*self._stands, *self._errors):
                self._resume(task_id)
            self._ended(None, self._errors)
            return
        self._each(
            self._stands,
            lambda task_id: self._tell(task_id, end),
            lambda task_id, _none: self._took.add(task_id),
            lambda: self._finish(end),
        )

    def _furthest(self) -> dict[int, int] | None:
        """Return an end that a task reports, else the furthest position; None for no agreement."""
        stands = self._stands.values()
        ends = [dict(one.end) for one in stands if one.end is not None]
        if self._closing is None:
            if ends:
                return ends[0]
        else:
            if ends:
                return None  # The task itself ends, and with it the sequence.
            known = [dict(one.next_start) for one in stands if one.next_start is not None]
            if known:
                return known[0]
        end: dict[int, int] = {}
        for one in stands:
            for p, offset in one.current.items():
                end[p] = max(offset, end.get(p, 0))
        if self._closing is not None and end == dict(self._closing[1]):
            return None  # The sequence is still empty.
        return end or None

    def _tell(self, task_id: str, end: Offsets) -> None:
        finish = self._closing is None
        one = self._stands[task_id]
        known = one.end if finish else one.next_start
        if known is None or dict(known) != dict(end):
            self._peons.set_end_offsets(task_id, end, finish=finish)
        else:
            self._peons.resume(task_id)

    def _finish(self, end: Offsets) -> None:
        for task_id in self._stands.keys() - self._took:
            self._resume(task_id)
        self._ended(end if self._took else None, self._errors)

    def _resume(self, task_id: str) -> None:
        # If this call is lost, the pause ends by itself.
        self._calls.call(
            peon_lane(task_id),
            lambda: self._peons.resume(task_id),
            lambda _none: None,
            lambda _error: None,
        )

    def _each(
        self,
        task_ids: Iterable[str],
        work: Callable[[str], T],
        done: Callable[[str, T], None],
        then: Callable[[], None],
    ) -> None:
        """Do some work for each task, on its lane; then call `then`."""
        waiting = set(task_ids)

        def settle(task_id: str) -> None:
            waiting.discard(task_id)
            if not waiting:
                then()

        def succeeded(task_id: str, result: T) -> None:
            done(task_id, result)
            settle(task_id)

        def failed(task_id: str, error: PenstockError) -> None:
            self._errors[task_id] = error
            settle(task_id)

        for task_id in tuple(waiting):
            self._calls.call(
                peon_lane(task_id),
                partial(work, task_id),
                partial(succeeded, task_id),
                partial(failed, task_id),
            )
