"""Control of a task by its supervisor: pause, resume and end offsets.

Part of a task, on its mailbox. Invariant: a pause ends by itself after a while, so that a task
reads on if its supervisor has died.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task.reader import Reader
    from penstock.indexing.task.task_state import TaskContext
    from penstock.mailbox import Timer


class Steering:
    """The control of one task.

    Args:
        context: The task.
        reader: Has the offsets that are read.
    """

    def __init__(self, context: TaskContext, reader: Reader) -> None:
        self._context = context
        self._reader = reader
        self._pause_end: Timer | None = None

    def pause(self) -> dict[int, int]:
        """Pause reading; return the offsets that the task has reached.

        Raises:
            Conflict: The end is agreed already.
        """
        context = self._context
        if context.state.sequences.final is not None:
            raise Conflict(
                f"task {context.spec.id}: its end is agreed already, so it cannot be paused"
            )
        if self._pause_end is not None:
            self._pause_end.cancel()
        context.paused = True
        self._pause_end = context.processor.timers.schedule_after(
            context.options.pause_limit_ms, self.resume, "the pause has lasted too long"
        )
        # A task behind its replicas may not have reached the start of its open sequence.
        last, planned = context.state.sequences.last, self._reader.planned
        return {p: max(o, last.start[p]) if last else o for p, o in planned.items()}

    def resume(self) -> None:
        """Continue reading."""
        self._context.paused = False
        if self._pause_end is not None:
            self._pause_end.cancel()
            self._pause_end = None
        self._context.wake()

    def set_end(self, end: Offsets, *, finish: bool) -> None:
        """Close the open sequence at these offsets and resume; the task ends there if `finish`.

        Raises:
            InvalidRequest: The offsets do not match the sequence.
        """
        context, state = self._context, self._context.state
        state.change_sequences(
            state.sequences.set_end_offsets(
                end, finish=finish, current=self._reader.planned, paused=context.paused
            )
        )
        self.resume()
