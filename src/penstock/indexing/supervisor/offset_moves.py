"""Changes of a supervisor's committed offsets by users: reset, and handover to a backfill.

`OffsetMoves` resets offsets or skips unread messages; it runs on the overlord's mailbox.
`check_backfill` and `backfill_spec` create the spec of a second supervisor that reads the
skipped range, from the committed offsets up to the latest; `range_spec` creates that of one which
reads ranges that a user chose. All are pure.

Invariant: the tasks that read the affected stream partitions are ended first, so none of them
can publish against the new offsets. A supervisor of chosen ranges moves no offsets of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.indexing.specs.stream_config import BoundedStreamConfig
from penstock.indexing.specs.task_context import uses_concurrent_locks, with_defaults
from penstock.indexing.supervisor.reconciler import adopt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.supervisor.polls import SupervisorPolls
    from penstock.indexing.supervisor.reconciler import Reconciler
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.supervisor_status import SupervisorSnapshot
    from penstock.indexing.supervisor.task_protocol import TaskProtocol


def check_backfill(snapshot: SupervisorSnapshot, task_context: Mapping[str, object]) -> None:
    """Check that a supervisor may leave its unpublished messages to another one.

    Args:
        snapshot: The supervisor.
        task_context: Default context of tasks.

    Raises:
        InvalidRequest: Its spec or its state does not allow it.
    """
    spec = snapshot.spec
    name = f"supervisor {spec.supervisor_id}"
    if spec.io.use_earliest_offset:
        raise InvalidRequest(
            f"{name} starts at the earliest message, so it would read everything again: set"
            " useEarliestOffset to false",
            place="spec.ioConfig.useEarliestOffset",
        )
    _require_concurrent_locks(spec, task_context)
    if snapshot.state != "RUNNING":
        raise InvalidRequest(f"{name} is {snapshot.state}: a backfill requires state RUNNING")
    _piece(snapshot)


def backfill_spec(
    snapshot: SupervisorSnapshot, token: str, task_count: int | None
) -> SupervisorSpec:
    """Return the spec of a supervisor that reads from the committed offsets up to the latest.

    Args:
        snapshot: The supervisor that leaves the messages.
        token: Makes the new id unique.
        task_count: Number of task groups, None for the same number.

    Raises:
        InvalidRequest: All messages are published.
    """
    spec, piece = snapshot.spec, _piece(snapshot)
    return _reading(spec, piece, token, task_count)


def range_spec(
    snapshot: SupervisorSnapshot,
    ranges: Mapping[int, tuple[int, int]],
    task_context: Mapping[str, object],
    token: str,
    task_count: int | None,
) -> SupervisorSpec:
    """Return the spec of a supervisor that reads chosen ranges once more, or for the first time.

    Args:
        snapshot: The supervisor that reads the stream.
        ranges: Offsets [start, end) of stream partitions.
        task_context: Default context of tasks.
        token: Makes the new id unique.
        task_count: Number of task groups, None for the same number.

    Raises:
        InvalidRequest: All ranges are empty, or the spec does not allow a second supervisor.
    """
    piece = {str(p): found for p, found in sorted(ranges.items()) if found[0] < found[1]}
    if not piece:
        raise InvalidRequest(
            "there are no messages in these ranges: specify at least one range whose end is after"
            " its start",
            place="partitionOffsetRanges",
        )
    spec = snapshot.spec
    if not spec.suspended:
        _require_concurrent_locks(spec, task_context)
    return _reading(spec, piece, token, task_count).with_suspended(False)  # noqa: FBT003 - its name says it


def _require_concurrent_locks(spec: SupervisorSpec, task_context: Mapping[str, object]) -> None:
    if not uses_concurrent_locks(with_defaults(spec.context, task_context)):
        raise InvalidRequest(
            f"supervisor {spec.supervisor_id}: two supervisors will append to"
            f" {spec.data_schema.datasource} at once: set useConcurrentLocks in its context",
            place="context.useConcurrentLocks",
        )


def _reading(
    spec: SupervisorSpec, piece: Mapping[str, tuple[int, int]], token: str, task_count: int | None
) -> SupervisorSpec:
    """Return the spec of a second supervisor that reads a range of each stream partition."""
    bounds = BoundedStreamConfig(
        start_sequence_numbers={p: start for p, (start, _) in piece.items()},
        end_sequence_numbers={p: end for p, (_, end) in piece.items()},
    )
    io = spec.io.model_copy(
        update={
            "bounded_stream_config": bounds,
            "auto_scaler_config": None,
            "task_count": task_count or spec.io.task_count,
        }
    )
    return spec.model_copy(
        update={
            "id": f"{spec.supervisor_id}_backfill_{token[:8]}",
            "spec": spec.spec.model_copy(update={"io_config": io}),
        }
    )


def _piece(snapshot: SupervisorSnapshot) -> dict[str, tuple[int, int]]:
    """Return the uncommitted range of each stream partition, up to its last seen end."""
    latest, _ = snapshot.latest()
    piece = {
        str(p): (offset, latest[p])
        for p, offset in snapshot.committed().items()
        if offset < latest.get(p, offset)
    }
    if not piece:
        raise InvalidRequest(
            f"supervisor {snapshot.spec.supervisor_id} has published all messages: there is"
            " nothing to backfill"
        )
    return piece


class OffsetMoves:
    """Operations on one supervisor's offsets.

    Args:
        state: The supervisor.
        snapshot: Its status.
        protocol: Its communication with its tasks.
        reconciler: Runs a round after a move.
        polls: Reports to the source which messages to keep.
    """

    def __init__(
        self,
        state: SupervisorState,
        snapshot: SupervisorSnapshot,
        protocol: TaskProtocol,
        reconciler: Reconciler,
        polls: SupervisorPolls,
    ) -> None:
        self._state = state
        self._snapshot = snapshot
        self._protocol = protocol
        self._reconciler = reconciler
        self._polls = polls

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
        adopt(state, self._protocol)
        state.committed.read()
        whole = offsets is None or state.committed.is_left_behind
        for group in list(state.groups.values()):
            if offsets is None or whole or group.partitions & offsets.keys():
                state.end_group(group, "the supervisor's offsets were reset")
        if offsets is None:
            state.committed.reset({}, earliest=state.spec.io.use_earliest_offset)
        elif whole:
            state.committed.reset(offsets, earliest=True)
        else:
            state.committed.move(offsets)
        state.health.reset()
        self._polls.poll_soon()  # The source learns soon which messages to keep.
        self._reconciler.advance()

    def _check(self, offsets: Offsets) -> None:
        try:
            self._state.stream.check(offsets)
        except InvalidRequest:  # narrow: the last seen state may be old
            self._polls.poll_soon()  # Refresh the state, so that a retry uses a new one.
            raise

    def cut_backfill(self, task_count: int | None) -> SupervisorSpec:
        """End the tasks, and return the spec of a supervisor that reads up to the latest messages.

        Raises:
            InvalidRequest: The spec or the state of the supervisor does not allow it.
            Unavailable: The metadata store does not answer.
        """
        state = self._state
        check_backfill(self._snapshot, state.options.task_context)
        adopt(state, self._protocol)
        for group in list(state.groups.values()):
            reason = "the supervisor leaves what it has not published to another"
            state.end_group(group, reason)
        # Read after the tasks have ended, so that no publish can move the offsets any further.
        state.committed.read()
        return backfill_spec(self._snapshot, state.ports.new_token(), task_count)

    def chosen_backfill(
        self, ranges: Mapping[int, tuple[int, int]], task_count: int | None
    ) -> SupervisorSpec:
        """Return the spec of a supervisor that reads ranges of this one's stream; see `range_spec`.

        Raises:
            InvalidRequest: The stream does not hold the ranges, or as `range_spec`.
        """
        state = self._state
        if state.stream.available is None:
            raise Unavailable(
                f"supervisor {state.id} has not seen its stream yet: try again in some seconds"
            )
        for at in (0, 1):
            self._check({p: found[at] for p, found in ranges.items()})
        return range_spec(
            *(self._snapshot, ranges, state.options.task_context),
            *(state.ports.new_token(), task_count),
        )

    def leave_behind(self, piece: SupervisorSpec) -> None:
        """Continue after the messages that another supervisor reads.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        bounds = piece.io.bounded_stream_config
        if bounds is not None:
            ends = {int(p): end for p, end in bounds.end_sequence_numbers.items()}
            self._state.committed.move(ends)
        self._reconciler.advance()
