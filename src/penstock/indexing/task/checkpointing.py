"""Requests to the supervisor to close a full sequence. Part of a task, on its mailbox.

Reading continues meanwhile: a sequence may grow further. The supervisor agrees on its end with all
replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.indexing.actions import CheckPointDataSourceMetadata

if TYPE_CHECKING:
    from penstock.indexing.sequences import Sequence
    from penstock.indexing.task.task_state import TaskContext


class Checkpoints:
    """Requests a checkpoint once for each sequence, and again until it is closed.

    Args:
        context: The task.
    """

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._errand = context.errand("asking for a checkpoint", "checkpoint")
        self._asked = ""
        context.processor.timers.schedule_every(
            context.options.checkpoint_repeat_ms, self._ask_again, "is the sequence full?"
        )

    def ask_if_full(self) -> None:
        """Request an end of the open sequence from the supervisor if it is full."""
        sequence = self._context.state.sequences.last
        if sequence is None or sequence.end is not None or not self._is_full(sequence):
            return
        if self._errand.busy or self._asked == sequence.name:
            return
        self._asked = sequence.name
        action = CheckPointDataSourceMetadata(sequence.start)
        actions = self._context.ports.actions
        self._errand.start(lambda: actions.perform(action), lambda _heard: None)

    def _ask_again(self) -> None:
        # The overlord may have received it but restarted before it acted.
        self._asked = ""
        self.ask_if_full()

    def _is_full(self, sequence: Sequence) -> bool:
        tuning, commit = self._context.spec.tuning_config, self._context.state.commit
        chunks: dict[object, int] = {}
        for file in commit.files(sequence.name):
            chunks[file.interval] = chunks.get(file.interval, 0) + file.rows
        return (
            max(chunks.values(), default=0) >= tuning.max_rows_per_segment
            or sum(chunks.values()) >= tuning.max_total_rows
        )
