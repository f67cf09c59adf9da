"""Reconciles a supervisor's actual tasks with the desired ones, in rounds.

On the overlord's mailbox. Defines the order of the steps of a round, and prevents nested rounds: a
round ends tasks, and the notifications of these ends request another round. The steps: `adoption`
finds tasks, `RollOver` selects groups to end, `Starts` starts missing tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.indexing.ports import TaskState
from penstock.indexing.supervisor.adoption import adopt, end_late_comers
from penstock.indexing.supervisor.rollover import RollOver
from penstock.indexing.supervisor.starts import Starts

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.indexing.supervisor.groups import TaskGroup
    from penstock.indexing.supervisor.state import SupervisorState
    from penstock.indexing.supervisor.talk.dialogue import Dialogue

_ROUND: Final = "look after the tasks"
_RELEASE: Final = "release the stream"


class Convergence:
    """The reconciliation rounds of one supervisor.

    Args:
        state: The supervisor.
        dialogue: Its communication with its tasks.
        finished: Called when it was stopped, its last task has ended, and its source keeps no
            messages for it.
    """

    def __init__(
        self, state: SupervisorState, dialogue: Dialogue, *, finished: Callable[[], None]
    ) -> None:
        self._state = state
        self._dialogue = dialogue
        self._finished = finished
        self._roll_over = RollOver(state, dialogue)
        self._starts = Starts(state, dialogue, self._roll_over)
        self._is_busy = False
        self._letting_go = False
        self._stopped = False

    def stop(self) -> None:
        """Stop all further rounds."""
        self._stopped = True

    def advance(self) -> None:
        """Run a round. Errors are recorded, and the next round retries."""
        if self._stopped or self._is_busy:
            # Ending tasks in a round leads here again; the next round does the rest.
            return
        self._is_busy = True
        state = self._state
        try:
            adopt(state, self._dialogue)
            self._roll_over.advance()
            end_late_comers(state)
            self._roll_over.end_overdue()
            state.committed.refresh(state.ports.clock.monotonic_s())
            if state.committed.is_left_behind:
                self._starts.leave_stream()
            else:
                self._starts.retract()
                if state.health.may_start_tasks(state.ports.clock.monotonic_s()):
                    self._starts.start_missing(state.stream.available or {})
            state.note_discovery()
            self._finish_stopping()
        except PenstockError as error:
            state.health.round_failed()
            state.note(error)
            if isinstance(error, Unavailable):
                state.waits.failed(_ROUND, error, dependency=Dependency.METADATA)
            else:
                state.waits.ended(_ROUND)
        else:
            state.health.round_done()
            state.waits.ended(_ROUND)
        finally:
            self._is_busy = False

    def end_group(self, group: TaskGroup, reason: str, state: TaskState = TaskState.FAILED) -> None:
        """End all tasks of a group, without a round for each of them.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        was_busy, self._is_busy = self._is_busy, True
        try:
            self._state.end_group(group, reason, state)
        finally:
            self._is_busy = was_busy

    def _finish_stopping(self) -> None:
        """After the last task has ended, let the source delete its messages, then finish."""
        state = self._state
        if state.groups or not state.stopping or self._letting_go:
            return
        self._letting_go = True

        def failed(error: PenstockError) -> None:
            self._letting_go = False  # The next round retries.
            state.note(error)
            if isinstance(error, Unavailable):
                state.waits.failed(_RELEASE, error)
            else:
                state.waits.ended(_RELEASE)

        state.stream.let_go(state.committed.offsets, self._finished, failed)
