"""Changes of a supervisor's committed offsets by users: reset and backfill.

On the overlord's mailbox. Invariant: the tasks that read the moved offsets are ended first, so none
of them can publish against the new offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest
from penstock.indexing.supervisor.adoption import adopt
from penstock.indexing.supervisor.offsets.backfill import backfill_spec, check_backfill

if TYPE_CHECKING:
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.supervisor.converging import Convergence
    from penstock.indexing.supervisor.pacing.looking import Looks
    from penstock.indexing.supervisor.standing import Standing
    from penstock.indexing.supervisor.state import SupervisorState
    from penstock.indexing.supervisor.talk.dialogue import Dialogue


class OffsetMoves:
    """Operations on one supervisor's offsets.

    Args:
        state: The supervisor.
        standing: Its status.
        dialogue: Its communication with its tasks.
        convergence: Ends tasks, and runs a round after a move.
        looks: Reports to the source which messages to keep.
    """

    def __init__(
        self,
        state: SupervisorState,
        standing: Standing,
        dialogue: Dialogue,
        convergence: Convergence,
        looks: Looks,
    ) -> None:
        self._state = state
        self._standing = standing
        self._dialogue = dialogue
        self._convergence = convergence
        self._looks = looks

    def reset(self, offsets: Offsets | None = None) -> None:
        """Reset committed offsets, all or those of some stream partitions.

        The tasks that read them are ended; the new offsets determine whether their unpublished
        messages are read again.

        Raises:
            InvalidRequest: The topic does not hold these offsets.
            Unavailable: The metadata store does not answer.
        """
        state = self._state
        if offsets is not None:
            self._check(offsets)
        adopt(state, self._dialogue)
        state.committed.read()
        whole = offsets is None or state.committed.is_left_behind
        for group in list(state.groups.values()):
            if offsets is None or whole or group.partitions & offsets.keys():
                self._convergence.end_group(group, "the supervisor's offsets were reset")
        if offsets is None:
            state.committed.reset({}, earliest=state.spec.io.use_earliest_offset)
        elif whole:
            state.committed.reset(offsets, earliest=True)
        else:
            state.committed.move(offsets)
        state.health.begin_anew()
        self._looks.rest_no_more()  # Tell the source soon which messages to keep now.
        self._convergence.advance()

    def _check(self, offsets: Offsets) -> None:
        try:
            self._state.stream.check(offsets)
        except InvalidRequest:  # narrow: the last seen state may be old
            self._looks.rest_no_more()  # Refresh the state, so that a retry uses a new one.
            raise

    def cut_backfill(self, task_count: int | None) -> SupervisorSpec:
        """End the tasks, and return the spec of a supervisor that reads up to the latest messages.

        Raises:
            InvalidRequest: The spec or the state of the supervisor does not allow it.
            Unavailable: The metadata store does not answer.
        """
        state = self._state
        check_backfill(self._standing, state.options.task_context)
        adopt(state, self._dialogue)
        for group in list(state.groups.values()):
            reason = "the supervisor leaves what it has not published to another"
            self._convergence.end_group(group, reason)
        # Read after the tasks have ended, so that no publish can move the offsets any further.
        state.committed.read()
        return backfill_spec(self._standing, state.ports.new_token(), task_count)

    def leave_behind(self, piece: SupervisorSpec) -> None:
        """Continue after the messages that another supervisor reads.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        bounds = piece.io.bounded_stream_config
        if bounds is not None:
            ends = {int(p): end for p, end in bounds.end_sequence_numbers.items()}
            self._state.committed.move(ends)
        self._convergence.advance()
