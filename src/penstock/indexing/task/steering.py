"""How a supervisor steers a task: it stops and goes on, and learns where it ends.

Part of a task, on its mailbox. Invariant: a pause that nobody ends is over after a while, so that a
supervisor that is gone keeps no task from reading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task.reader import Reader
    from penstock.indexing.task.state import TaskContext
    from penstock.mailbox import Timer


class Steering:
    """The steering of one task.

    Args:
        context: The task.
        reader: Says where reading stands.
    """

    def __init__(self, context: TaskContext, reader: Reader) -> None:
        self._context = context
        self._reader = reader
        self._pause_end: Timer | None = None

    def pause(self) -> dict[int, int]:
        """Begin to read nothing more; return the offsets at which reading stands then.

        Raises:
            Conflict: The end is agreed already.
        """
        context = self._context
        if context.state.sequences.final is not None:
            raise Conflict(
                f"task {context.spec.id}: its end is agreed already, there is nothing to pause for"
            )
        if self._pause_end is not None:
            self._pause_end.cancel()
        context.paused = True
        self._pause_end = context.processor.timers.schedule_after(
            context.options.pause_limit_ms, self.resume, "the pause has lasted too long"
        )
        # One that lags behind its replicas may not have read up to where its open sequence begins.
        last, planned = context.state.sequences.last, self._reader.planned
        return {p: max(o, last.start[p]) if last else o for p, o in planned.items()}

    def resume(self) -> None:
        """Go on reading."""
        self._context.paused = False
        if self._pause_end is not None:
            self._pause_end.cancel()
            self._pause_end = None
        self._context.wake()

    def set_end(self, end: Offsets, *, finish: bool) -> None:
        """Close the open sequence at these offsets and resume; the task ends there if `finish`.

        Raises:
            InvalidRequest: The offsets do not fit.
        """
        context, state = self._context, self._context.state
        state.change_sequences(
            state.sequences.set_end_offsets(
                end, finish=finish, current=self._reader.planned, paused=context.paused
            )
        )
        self.resume()
