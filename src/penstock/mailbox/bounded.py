"""A mailbox with a bound, which pushes back on senders instead of growing.

Owns the bound only; order, states and wake-up are `TaskMailbox`'s. Invariants: other threads never
bring the number of normal mails above the capacity; urgent mails and the owner's own puts pass
always, since control must get through a full mailbox and an owner that waits for itself would wait
for ever.
"""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.mailbox.taskmailbox import MailboxState, TaskMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import Clock
    from penstock.mailbox.mail import Mail


class BoundedTaskMailbox(TaskMailbox):
    """A mailbox in which other threads' normal mails wait for room.

    A put takes room first, under the condition's mutex, then puts as ever, without it: the owner
    never waits for a putting thread. The taker reads `_waiting` after it took; a put writes
    `_waiting` before it looks for room; so one of the two sees the other.

    Args:
        capacity_mails: The most normal mails that other threads may make wait.
        name: For errors and metrics.
        clock: Ends waits when a timer is due.
        bind: As in `TaskMailbox`.

    Raises:
        InvalidRequest: The capacity is below 1.
    """

    def __init__(
        self,
        capacity_mails: int,
        name: str = "mailbox",
        *,
        clock: Clock | None = None,
        bind: bool = True,
    ) -> None:
        super().__init__(name, clock=clock, bind=bind)
        if capacity_mails < 1:
            raise InvalidRequest(f"mailbox {name}: capacity_mails is {capacity_mails}: give 1 up")
        self.capacity_mails: Final = capacity_mails
        self._room = threading.Condition()
        self._reserved = 0
        self._waiting = 0

    def put(self, mail: Mail) -> None:
        """Put a mail, waiting for room if it is another thread's and not urgent.

        Raises:
            Closed: The mailbox is quiesced or closed, perhaps while this waited.
            Unavailable: It is full and the caller is in `run_exclusively`, where it cannot wait.
        """
        self._put_reserved(mail, wait=True)

    def put_nowait(self, mail: Mail) -> None:
        """Put a mail if there is room for it.

        Raises:
            Unavailable: The mailbox is full: try again later.
            Closed: The mailbox is quiesced or closed.
        """
        self._put_reserved(mail, wait=False)

    def batch(self) -> Iterator[Mail]:
        """Yield as ever, and tell waiting puts of the room."""
        for mail in super().batch():
            if self._waiting:
                self._announce_room()
            yield mail

    def try_take(self, priority: int = -1, *, ignoring_deferrable: bool = False) -> Mail | None:
        """Take as ever, and tell waiting puts of the room."""
        mail = super().try_take(priority, ignoring_deferrable=ignoring_deferrable)
        if self._waiting:
            self._announce_room()
        return mail

    def take(self, priority: int = -1) -> Mail:
        """Take as ever, and tell waiting puts of the room."""
        mail = super().take(priority)
        if self._waiting:
            self._announce_room()
        return mail

    def drain(self) -> list[Mail]:
        """Drain as ever, and tell waiting puts of the room."""
        mails = super().drain()
        self._announce_room()
        return mails

    def quiesce(self) -> None:
        """Quiesce as ever; puts that wait for room raise."""
        try:
            super().quiesce()
        finally:
            self._announce_room()

    def _put_reserved(self, mail: Mail, *, wait: bool) -> None:
        if mail.urgent or self.is_mailbox_thread:
            super().put(mail)
            return
        # Who holds the mailbox exclusively must not wait: the owner may wait for the end of that.
        self._reserve(mail, wait=wait and self._exclusive_owner != get_ident())
        try:
            super().put(mail)
        finally:
            with self._room:
                self._reserved -= 1
                if self._waiting:
                    self._room.notify_all()

    def _reserve(self, mail: Mail, *, wait: bool) -> None:
        with self._room:
            self._waiting += 1
            try:
                while self._is_full() and self._state is MailboxState.OPEN:
                    if not wait:
                        raise Unavailable(
                            f"mailbox {self.name} holds {self.capacity_mails} mails, its most; "
                            f"try {mail!r} again later"
                        )
                    self._clock.wait(self._room, None)
            finally:
                self._waiting -= 1
            self._reserved += 1

    def _is_full(self) -> bool:
        return len(self._normal) + self._reserved >= self.capacity_mails

    def _announce_room(self) -> None:
        with self._room:
            self._room.notify_all()
