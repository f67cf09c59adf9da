"""Mailbox: mails from all threads wait for the one thread that owns some state.

`TaskMailbox` owns the order of mails, the mailbox states and the wake-up. It runs nothing and
does not own timers (`alarm`). `Wakeup` has two implementations with the same meaning: a raw
lock as a binary semaphore, which wakes a thread in a few microseconds, and a condition under a
given clock, which lets a virtual clock end the wait.

Invariants:

- Urgent mails come before all others; each of the two kinds is in order of arrival.
- A *batch* is the head of the normal mails at its creation. It never grows, so a mail that
  posts itself again waits for the next batch.
- Either a put raises and the mail is in no queue, or the mail is returned exactly once: by a take,
  by `drain` or by `close`.
- A `set` after the last `wait` returned makes the next `wait` return at once. A `wait` may
  return without a `set`, so callers check again.

Why putting takes no lock
-------------------------
One thread takes, any thread puts. `deque.append`, `popleft`, `remove` and `del d[i]` are each
atomic under CPython's global interpreter lock, and so is each read or write of an attribute, in
one order for all threads.

*Lost wake-up.* The taker writes `_sleeping = True`, then checks for a mail, then sleeps. A put
appends, then reads `_sleeping`. In either order the check finds the mail or the put sees that
the taker sleeps. Such a put writes `_sleeping = False` and then sets the wake-up, so later puts
need not; a put between the two is covered by that set, after which the taker checks again.

*Lost or late mail at quiesce and close.* A put reads `_lock_free`, appends, and reads
`_accepting`. `quiesce` first sets both to False, then moves the content of the deques to new
ones; only the new ones are read from then on, and no put appends to them. A put that read True
twice appended before the move, so its mail is moved. A put that reads False the second time
tries to remove its mail: either it removes the mail from the old deque and raises, or the mail
was moved or taken before, and was accepted. `remove` and the move of a deque are each atomic,
so exactly one of the two gets the mail. No mutex is taken, so a put from a finalizer or a
signal handler that interrupts another put cannot deadlock.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from enum import Enum
from threading import get_ident
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.core.clock import Clock, SystemClock
from penstock.core.errors import Closed, PenstockError
from penstock.mailbox.alarm import Alarm
from penstock.mailbox.mail import MIN_PRIORITY, Mail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# A put wakes the owner, as proved above. But an asynchronous exception in the putting thread, such
# as Ctrl-C, may come between its append and its wake-up call. Then the periodic check finds the
# mail.
_LOOK_AGAIN_S: Final = 1.0


class Wakeup(Protocol):
    """One thread waits, any thread sets."""

    def set(self) -> None:
        """Let the current wait, or otherwise the next one, return."""
        ...

    def wait(self, timeout_s: float | None) -> None:
        """Wait until set or until the time-out; may return early."""
        ...


class LockWakeup:
    """A raw lock as a binary semaphore: locked means "not set"."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Unlock; no effect if it is set already."""
        with suppress(RuntimeError):
            self._lock.release()

    def wait(self, timeout_s: float | None) -> None:
        """Lock again, which waits for a `set`."""
        limit = _LOOK_AGAIN_S if timeout_s is None else min(timeout_s, _LOOK_AGAIN_S)
        self._lock.acquire(timeout=limit)


class ClockWakeup:
    """A condition whose time is that of a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = threading.Condition()
        self._is_set = False

    def set(self) -> None:
        """Notify the waiting thread."""
        with self._condition:
            self._is_set = True
            self._condition.notify()

    def wait(self, timeout_s: float | None) -> None:
        """Wait under the clock."""
        with self._condition:
            if not self._is_set:
                self._clock.wait(self._condition, timeout_s)
            self._is_set = False


def wakeup_for(clock: Clock) -> Wakeup:
    """Return the fast implementation for the machine's clock, the other for any other clock."""
    return LockWakeup() if isinstance(clock, SystemClock) else ClockWakeup(clock)


T = TypeVar("T")


class MailboxState(Enum):
    """OPEN puts and takes, QUIESCED only takes, CLOSED does neither; states only advance."""

    OPEN = "open"
    QUIESCED = "quiesced"
    CLOSED = "closed"


class WrongThread(PenstockError):
    """Only the mailbox thread may do this: send mail to it instead."""


class TaskMailbox:
    """An unbounded mailbox with one owner.

    The mutex is held during changes of state, during `run_exclusively`, and by puts during either;
    mail cannot replace it, because it guards the mailbox itself.

    Args:
        name: For errors and metrics.
        clock: Ends waits when a timer is due.
        bind: Make the constructing thread the owner; otherwise the first that calls `bind` is.

    Attributes:
        alarm: Rings between mails, and interrupts the sleep of `take` for that.
        interruption: Raised by each yield from now on, because the loop must end; None: none. Only
            the owner writes it, in a mail that every yield runs.
    """

    def __init__(
        self, name: str = "mailbox", *, clock: Clock | None = None, bind: bool = True
    ) -> None:
        self.name: Final = name
        self._clock: Final = clock or SystemClock()
        self._owner: int | None = get_ident() if bind else None
        self._mutex: Final = threading.RLock()
        self._state = MailboxState.OPEN
        self._accepting = True  # the state is OPEN
        self._lock_free = True  # and no thread holds the mailbox exclusively
        self._exclusive_depth = 0
        self._urgent: deque[Mail] = deque()
        self._normal: deque[Mail] = deque()
        self._batch_left = 0
        self._sleeping = False
        self._wakeup: Final = wakeup_for(self._clock)
        self.interruption: BaseException | None = None
        self.alarm: Final = Alarm(self._clock, self._check_owner)

    # Any thread

    @property
    def state(self) -> MailboxState:
        """OPEN, QUIESCED or CLOSED."""
        return self._state

    @property
    def is_mailbox_thread(self) -> bool:
        """Whether the calling thread is the owner."""
        return get_ident() == self._owner

    @property
    def size(self) -> int:
        """Number of waiting mails."""
        return len(self._urgent) + len(self._normal)

    @property
    def alarm_s(self) -> float:
        """Time of the alarm on the monotonic clock; infinite if none is set."""
        return self.alarm.at_s

    def bind(self) -> None:
        """Make the calling thread the owner.

        Raises:
            WrongThread: Another thread is the owner.
        """
        with self._mutex:
            if self._owner is None:
                self._owner = get_ident()
            elif self._owner != get_ident():
                raise WrongThread(
                    f"mailbox {self.name} belongs to another thread already: send mail to it "
                    "instead, or create a mailbox for this thread"
                )

    def put(self, mail: Mail) -> None:
        """Append a mail to its kind, and wake the owner if it sleeps. Never waits.

        Raises:
            Closed: The mailbox is quiesced or closed; the mail will not run.
        """
        # Read the deque first: if `_lock_free` is True afterwards, it is the one before a quiesce.
        box = self._urgent if mail.urgent else self._normal
        if not self._lock_free:
            self._put_locked(mail)
            return
        box.append(mail)
        if not self._accepting:
            self._require_accepted(mail, box)
        if self._sleeping:
            self._sleeping = False
            self._wakeup.set()

    def run_exclusively(self, action: Callable[[], T]) -> T:
        """Run an action while no other thread changes the state or begins a put.

        So a check of the state holds until the action ends. Puts by the action itself are allowed;
        a put that another thread began before may still append during it; the owner can still
        take mail.
        """
        with self._mutex:
            self._exclusive_depth += 1
            self._lock_free = False
            try:
                return action()
            finally:
                self._exclusive_depth -= 1
                if not self._exclusive_depth:
                    self._lock_free = self._accepting

    # The owner only

    def has_mail(self) -> bool:
        """Return whether a mail waits, in any state.

        Raises:
            WrongThread: The caller is not the owner.
        """
        self._check_owner()
        self.alarm.ring_if_due()
        return bool(self._urgent or self._normal)

    def create_batch(self) -> bool:
        """Begin a batch of the waiting mails, unless one is under way; return whether a mail waits.

        Raises:
            WrongThread: The caller is not the owner.
        """
        self._check_owner()
        self.alarm.ring_if_due()
        if not self._batch_left:
            self._batch_left = len(self._normal)
        return self._batch_left > 0 or bool(self._urgent)

    def extend_batch(self) -> None:
        """Extend the batch to all waiting mails: for the last batch, before the end.

        Raises:
            WrongThread: The caller is not the owner.
        """
        self._check_owner()
        self._batch_left = len(self._normal)

    def try_take_from_batch(self) -> Mail | None:
        """Take the next urgent mail, or else the next of the batch, regardless of priority.

        Raises:
            WrongThread: The caller is not the owner.
            Closed: The mailbox is closed.
        """
        return next(self.batch(), None)

    def batch(self) -> Iterator[Mail]:
        """Yield the mails that `try_take_from_batch` would return, until it would return None.

        The next mail stays in the mailbox until it is requested. Costs half as much for each mail,
        because the thread is checked only once. Raises as `try_take_from_batch`.
        """
        self._check_takes()
        while True:
            if self._urgent:
                yield self._urgent.popleft()
            elif self._batch_left:
                self._batch_left -= 1
                yield self._normal.popleft()
            else:
                return

    def try_take(
        self, priority: int = MIN_PRIORITY, *, ignoring_deferrable: bool = False
    ) -> Mail | None:
        """Take the first mail with at least this priority, or return None; never waits.

        Args:
            priority: The minimum priority.
            ignoring_deferrable: Use the priority with which deferrable mails were created.

        Raises:
            WrongThread: The caller is not the owner.
            Closed: The mailbox is closed.
        """
        self._check_takes()
        self.alarm.ring_if_due()
        return self._take_first(priority, ignoring_deferrable=ignoring_deferrable)

    def take(self, priority: int = MIN_PRIORITY) -> Mail:
        """Take as `try_take`, but wait until there is a matching mail.

        Raises:
            WrongThread: The caller is not the owner.
            Closed: The mailbox is closed, or is quiesced and has no matching mail.
        """
        mail = self.try_take(priority)
        if mail is not None:
            return mail
        try:
            while True:
                # Announce the sleep before the check: see the proof above.
                self._sleeping = True
                mail = self._take_first(priority)
                if mail is not None:
                    return mail
                if self._state is not MailboxState.OPEN:
                    raise Closed(
                        f"mailbox {self.name} is {self._state.value} and has no mail of priority "
                        f"{priority} or more: none can arrive any longer"
                    )
                self._wakeup.wait(self.alarm.left_s())
                self.alarm.ring_if_due()
        finally:
            self._sleeping = False

    def drain(self) -> list[Mail]:
        """Remove all mails, in the order in which the loop would have run them. Any state.

        Raises:
            WrongThread: The caller is not the owner.
        """
        self._check_owner()
        self._batch_left = 0
        return [box.popleft() for box in (self._urgent, self._normal) for _ in range(len(box))]

    def quiesce(self) -> None:
        """Accept no further mails; accepted ones can still be taken. No effect unless open.

        Raises:
            WrongThread: The caller is not the owner.
        """
        self._check_owner()
        with self._mutex:
            if self._state is not MailboxState.OPEN:
                return
            self._state = MailboxState.QUIESCED
            self._accepting = self._lock_free = False
            self._urgent = _emptied(self._urgent)
            self._normal = _emptied(self._normal)

    def close(self) -> list[Mail]:
        """Neither accept nor give mails; return the remaining ones, for the caller to cancel.

        Raises:
            WrongThread: The caller is not the owner.
        """
        self.quiesce()
        with self._mutex:
            self._state = MailboxState.CLOSED
            self.alarm.cancel()
            return self.drain()

    # Inside

    def _check_owner(self) -> None:
        if get_ident() != self._owner:
            raise WrongThread(
                f"mailbox {self.name}: only its own thread may do this; send mail to it instead"
                if self._owner is not None
                else f"mailbox {self.name} has no thread yet: run its processor, or call bind()"
            )

    def _check_takes(self) -> None:
        self._check_owner()
        if self._state is MailboxState.CLOSED:
            raise Closed(f"mailbox {self.name} is closed; to take mail it must be open or quiesced")

    def _take_first(self, priority: int, *, ignoring_deferrable: bool = False) -> Mail | None:
        for box in (self._urgent, self._normal):
            # By index: other threads append meanwhile, which breaks an iterator. Only this thread
            # removes, so an index stays valid.
            for index in range(len(box)):
                mail = box[index]
                seen_as = mail.created_priority if ignoring_deferrable else mail.priority
                if seen_as >= priority:
                    del box[index]
                    if box is self._normal and index < self._batch_left:
                        self._batch_left -= 1
                    return mail
        return None

    def _put_locked(self, mail: Mail) -> None:
        """Put while the mailbox is held exclusively or does not accept."""
        with self._mutex:
            if self._state is not MailboxState.OPEN:
                raise self._not_accepting(mail)
            (self._urgent if mail.urgent else self._normal).append(mail)
            if self._sleeping:
                self._sleeping = False
                self._wakeup.set()

    def _require_accepted(self, mail: Mail, box: deque[Mail]) -> None:
        """Check whether a mail that was appended while `quiesce` ran was accepted."""
        try:
            box.remove(mail)
        except ValueError:
            return  # moved by the quiesce, or taken before it: accepted
        raise self._not_accepting(mail)

    def _not_accepting(self, mail: Mail) -> Closed:
        return Closed(
            f"mailbox {self.name} is {self._state.value}; to put {mail!r} it must be open"
        )


def _emptied(old: deque[Mail]) -> deque[Mail]:
    """Move mails to a new deque; a put under way may still append to or remove from the old one.

    The whole move is one call into C, so no other thread runs during it, and an asynchronous
    exception, such as Ctrl-C, cannot lose a mail between the two deques. It ends with the
    `IndexError` of the first `popleft` on the empty deque: a test for emptiness before each
    `popleft` would race with a late put that removes the last mail.
    """
    new: deque[Mail] = deque()
    with suppress(IndexError):
        new.extend(iter(old.popleft, None))
    return new
