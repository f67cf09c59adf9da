"""States of an active task in the overlord: the table of transitions, and the task's entry.

`TASK_MACHINE` decides what each event does; `task_queue` reports the events, and `task_effects`
carries out the effects. An event that follows a write to the metadata store is reported once the
write succeeded, so a transition never has to be undone: a worker is stored before the task is sent
to it, and an end before its locks are released. Invariants, checked by walks through the table:

- the first end stands: a task in `ENDING` gets no other end;
- locks are released only after the end is stored, and waiting tasks are tried only after that;
- a task has at most one worker, and is sent to it only after this is stored;
- a task is either acquiring locks or has a worker or waits for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.state_machine import (
    IGNORED,
    IMPOSSIBLE,
    Refusal,
    Row,
    StateMachine,
    Symbol,
    Transition,
    go,
)

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import TaskLocation, TaskState
    from penstock.indexing.task_spec import TaskSpec


class ActiveTaskState(Symbol):
    """State of a task in the overlord."""

    NEW = "not in the queue yet"
    WAITING = "waits for locks"
    PENDING = "has its locks and no worker"
    RESTORED = "a former overlord stored its worker, which has not reported it in this term"
    SENDING = "is being sent to its worker"
    UNSURE = "its worker did not answer and may have it"
    ACCEPTED = "its worker has stored it"
    RUNNING = "its worker reports that it runs"
    ENDING = "its end is known and not stored yet"
    ENDED = "its end is stored"


class TaskEvent(Symbol):
    """Kinds of events; the value describes the event in the page of transitions."""

    ADDED = "added, or found in the store during the term"
    FOUND = "found at the start of the term, without a worker"
    FOUND_AT_WORKER = "found at the start of the term, with a worker"
    TERM_BEGAN = "all tasks were found"
    LOCKS_GRANTED = "locks granted"
    LOCKS_DENIED = "locks cannot be granted, or were lost while no overlord led"
    LOCKS_YIELDED = "locks yielded to another task"
    WORKER_STORED = "a worker was chosen and stored"
    ACCEPTED = "its worker accepted it"
    REFUSED = "its worker refused it as invalid"
    WORKER_FULL = "its worker has no slot for it"
    UNANSWERED = "its worker did not answer, or reported another error"
    NO_WORKER_STORED = "stored that it has no worker"
    WORKER_RENAMED = "announced by a worker while its own is unknown in this term"
    RUNS = "announced by its worker, or by any worker if it has no worker"
    RUNS_ELSEWHERE = "announced by a worker that is not its own"
    ENDED_AT_WORKER = "announced as ended by its worker, after `RUNS`"
    ABSENT = "absent from a report of its worker that is newer than the state"
    WORKER_LOST = "its worker is lost"
    SHUT_DOWN = "shut down; this end is stored"
    END_STORED = "end stored"
    GONE = "no longer active in the store"


class TaskEffect(Symbol):
    """Effects of transitions; `task_effects` carries them out."""

    ADD_TO_LOCKBOX = "let the task request locks"
    ACQUIRE_LOCKS = "request its locks; they yield until a worker has it"
    STOP_ACQUIRING = "remove it from the tasks that wait for locks, and try the next one"
    LET_LOCKS_YIELD = "let its locks yield to other tasks"
    KEEP_LOCKS = "let its locks yield no longer"
    RELEASE_LOCKS = "release its locks, then delete their data"
    ASSIGN_WORKER = "set its worker"
    CLEAR_WORKER = "remove it from its worker"
    STORE_WORKER = "store its worker"
    STORE_NO_WORKER = "store that it has no worker, together with others of this turn"
    SEND = "send it to its worker"
    REST_WORKER = "give its worker no tasks for a while"
    POLL_WORKER = "request a full report of its worker"
    DISMISS = "have the announcing worker stop or delete it"
    LEAVE_WORKER = "remove it from its worker, and have the worker stop or delete it"
    PLACE_TASKS = "choose workers for pending tasks soon"
    STORE_END = "store its end soon, together with others"
    FORGET = "remove it from the queue and the index"
    REPORT_LOCK_WAIT = "report how long it waited for locks"
    REPORT_SLOT_WAIT = "report how long it waited for a worker"
    REPORT_END = "count its end, and report how long it ran"
    PUBLISH = "publish its progress in the index"
    NOTIFY = "notify the supervisors of its end"


_S = ActiveTaskState
_E = TaskEvent
_F = TaskEffect
_ASSIGNED: Final = (_S.RESTORED, _S.SENDING, _S.UNSURE, _S.ACCEPTED, _S.RUNNING)
_UNENDED: Final = (_S.WAITING, _S.PENDING, *_ASSIGNED)
_ENDS = go(_S.ENDING, _F.STORE_END)
_LEAVES: Final[Transition[ActiveTaskState, TaskEffect]] = go(
    _S.ENDED,
    _F.FORGET,
    _F.RELEASE_LOCKS,
    _F.STOP_ACQUIRING,
    _F.LEAVE_WORKER,
    _F.REPORT_END,
    _F.NOTIFY,
    _F.PLACE_TASKS,
)


def _answer(
    transition: Transition[ActiveTaskState, TaskEffect],
) -> Row[ActiveTaskState, TaskEffect]:
    """Return the row of an answer to `SEND`, which is late in states that follow `SENDING`."""
    late = dict.fromkeys((_S.RUNNING, _S.ENDING, _S.ENDED), IGNORED)
    return Row({_S.SENDING: transition, **late}, otherwise=IMPOSSIBLE)


TASK_MACHINE: Final = StateMachine(
    ActiveTaskState,
    {
        _E.ADDED: Row(
            {_S.NEW: go(_S.WAITING, _F.ADD_TO_LOCKBOX, _F.PUBLISH, _F.ACQUIRE_LOCKS)},
            otherwise=IMPOSSIBLE,
        ),
        _E.FOUND: Row(
            {_S.NEW: go(_S.WAITING, _F.PUBLISH, _F.LET_LOCKS_YIELD)}, otherwise=IMPOSSIBLE
        ),
        _E.FOUND_AT_WORKER: Row(
            {_S.NEW: go(_S.RESTORED, _F.ASSIGN_WORKER, _F.PUBLISH)}, otherwise=IMPOSSIBLE
        ),
        _E.TERM_BEGAN: Row(
            {
                _S.WAITING: go(_S.WAITING, _F.ACQUIRE_LOCKS),
                _S.RESTORED: IGNORED,
                _S.ENDING: IGNORED,
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.LOCKS_GRANTED: Row(
            {_S.WAITING: go(_S.PENDING, _F.REPORT_LOCK_WAIT, _F.PUBLISH, _F.PLACE_TASKS)},
            otherwise=IMPOSSIBLE,
        ),
        _E.LOCKS_DENIED: Row({_S.WAITING: _ENDS, _S.RESTORED: _ENDS}, otherwise=IMPOSSIBLE),
        _E.LOCKS_YIELDED: Row(
            {_S.PENDING: go(_S.WAITING, _F.PUBLISH, _F.ACQUIRE_LOCKS)}, otherwise=IGNORED
        ),
        _E.WORKER_STORED: Row(
            {_S.PENDING: go(_S.SENDING, _F.KEEP_LOCKS, _F.ASSIGN_WORKER, _F.PUBLISH, _F.SEND)},
            otherwise=IMPOSSIBLE,
        ),
        _E.ACCEPTED: _answer(go(_S.ACCEPTED, _F.PUBLISH, _F.PLACE_TASKS)),
        _E.REFUSED: _answer(_ENDS),
        _E.WORKER_FULL: _answer(go(_S.PENDING, _F.CLEAR_WORKER, _F.PUBLISH, _F.STORE_NO_WORKER)),
        _E.UNANSWERED: _answer(go(_S.UNSURE, _F.PUBLISH, _F.REST_WORKER, _F.POLL_WORKER)),
        _E.NO_WORKER_STORED: Row(
            {_S.PENDING: go(_S.PENDING, _F.LET_LOCKS_YIELD)}, otherwise=IMPOSSIBLE
        ),
        _E.WORKER_RENAMED: Row(
            {
                # A report that lists the task twice renames its worker once.
                **dict.fromkeys(_ASSIGNED, IGNORED),
                _S.RESTORED: go(_S.RESTORED, _F.ASSIGN_WORKER, _F.STORE_WORKER),
                _S.ENDING: go(_S.ENDING, _F.ASSIGN_WORKER, _F.STORE_WORKER),
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.RUNS: Row(
            {
                _S.WAITING: go(
                    _S.RUNNING,
                    _F.STOP_ACQUIRING,
                    _F.KEEP_LOCKS,
                    _F.ASSIGN_WORKER,
                    _F.REPORT_SLOT_WAIT,
                    _F.PUBLISH,
                ),
                _S.PENDING: go(
                    _S.RUNNING,
                    _F.KEEP_LOCKS,
                    _F.ASSIGN_WORKER,
                    _F.REPORT_SLOT_WAIT,
                    _F.PUBLISH,
                ),
                **dict.fromkeys(_ASSIGNED, go(_S.RUNNING, _F.REPORT_SLOT_WAIT, _F.PUBLISH)),
                _S.ENDING: IGNORED,
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.RUNS_ELSEWHERE: Row(
            {state: go(state, _F.DISMISS) for state in (*_ASSIGNED, _S.ENDING)},
            otherwise=IMPOSSIBLE,
        ),
        _E.ENDED_AT_WORKER: Row({_S.RUNNING: _ENDS, _S.ENDING: IGNORED}, otherwise=IMPOSSIBLE),
        _E.ABSENT: Row(
            {
                _S.UNSURE: go(_S.PENDING, _F.CLEAR_WORKER, _F.PUBLISH, _F.STORE_NO_WORKER),
                _S.RESTORED: _ENDS,
                _S.ACCEPTED: _ENDS,
                _S.RUNNING: _ENDS,
                _S.SENDING: IGNORED,
                _S.ENDING: IGNORED,
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.WORKER_LOST: Row(
            {**dict.fromkeys(_ASSIGNED, _ENDS), _S.ENDING: IGNORED}, otherwise=IMPOSSIBLE
        ),
        _E.SHUT_DOWN: Row(
            {
                **dict.fromkeys(_UNENDED, go(_S.ENDING)),
                _S.ENDING: Refusal("its end is being stored"),
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.END_STORED: Row({_S.ENDING: _LEAVES}, otherwise=IMPOSSIBLE),
        _E.GONE: Row(
            {**dict.fromkeys((*_UNENDED, _S.ENDING), _LEAVES), _S.ENDED: IGNORED},
            otherwise=IMPOSSIBLE,
        ),
    },
    initial=[_S.NEW],
    final=[_S.ENDED],
)
"""Outcome of each event in each state of a task."""


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended; `worker` is None for a task without a worker."""

    task_id: str
    state: TaskState
    error: str
    worker: str | None


@dataclass(frozen=True, slots=True)
class EndedTask:
    """Event: a task ended, its end is stored, and its locks are released or requested to be."""

    task: TaskSpec
    state: TaskState
    error: str


@dataclass(slots=True, eq=False)
class QueuedTask:
    """An active task. On the overlord's mailbox.

    Attributes:
        task: Its spec.
        created_ms: When it was submitted.
        number: Order of arrival in the queue.
        state: Its state.
        since: When its state or its worker's report last changed, in the runner's count of events.
        order: Order in which it got its locks: of pending tasks the older goes first.
        worker: Its worker, None if none.
        location: Address of its peon.
        waits: Dependencies that it waits for, from its worker's last report.
        end: Its end, while the end is not stored yet.
        granted_ms: When it first had its locks; None before that, or if that was in another term.
        running_ms: When it first ran; None in the same cases.
    """

    task: TaskSpec
    created_ms: int
    number: int
    state: ActiveTaskState = ActiveTaskState.NEW
    since: int = 0
    order: int = 0
    worker: str | None = None
    location: TaskLocation | None = None
    waits: tuple[DependencyWait, ...] = ()
    end: TaskEnd | None = None
    granted_ms: int | None = None
    running_ms: int | None = None

    @property
    def is_ending(self) -> bool:
        """Whether its end is known."""
        return self.state in _ENDINGS

    @property
    def confirmed(self) -> bool:
        """Whether its worker reported in this term that it has the task."""
        return self.state in _CONFIRMED

    @property
    def taken(self) -> bool:
        """Whether it is certain that its worker has it; then it is never sent to another."""
        return self.state is _S.RESTORED or self.state in _CONFIRMED


_ENDINGS: Final = frozenset({_S.ENDING, _S.ENDED})
_CONFIRMED: Final = frozenset({_S.ACCEPTED, _S.RUNNING})


@dataclass(slots=True)
class ReportedEvent:
    """An event of a task.

    Attributes:
        entry: The task.
        event: The kind of event.
        worker: The worker of the event, for effects that concern one.
        end: The end that the event brings, for `STORE_END` and `LEAVE_WORKER`.
    """

    entry: QueuedTask
    event: TaskEvent
    worker: str = ""
    end: TaskEnd | None = None
