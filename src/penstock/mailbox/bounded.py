"""A mailbox with a capacity, which delays senders instead of growing.

Owns only the capacity; order, states and wake-up are those of `TaskMailbox`. Invariants: other
threads never raise the number of normal mails above the capacity; urgent mails and the owner's own
puts always pass, because control mail must get through a full mailbox and an owner that waits for
itself would wait for ever.
"""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.mailbox.task_mailbox import MailboxState, TaskMailbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import Clock
    from penstock.mailbox.mail import Mail


class BoundedTaskMailbox(TaskMailbox):
    """A mailbox in which other threads' normal mails wait for free capacity.

    A put first reserves capacity under the condition's mutex, then puts without it: the owner never
    waits for a putting thread. The taker reads `_waiting` after it took; a put writes `_waiting`
    before it checks the capacity; so at least one of the two sees the other.

    Args:
        capacity_mails: Maximum number of normal mails put by other threads.
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
            raise InvalidRequest(
                f"mailbox {name}: capacity_mails is {capacity_mails}: give 1 or more"
            )
        self.capacity_mails: Final = capacity_mails
        self._room = threading.Condition()
        self._reserved = 0
        self._waiting = 0

    def put(self, mail: Mail) -> None:
        """Put a mail; wait for capacity if it comes from another thread and is not urgent.

        Raises:
            Closed: The mailbox is quiesced or closed, possibly during the wait.
            Unavailable: It is full and the caller is in `run_exclusively`, where it cannot wait.
        """
        self._put_reserved(mail, wait=True)

    def put_nowait(self, mail: Mail) -> None:
        """Put a mail if there is free capacity.

        Raises:
            Unavailable: The mailbox is full: try again later.
            Closed: The mailbox is quiesced or closed.
        """
        self._put_reserved(mail, wait=False)

    def batch(self) -> Iterator[Mail]:
        """Yield as `TaskMailbox.batch`, and wake waiting puts."""
        for mail in super().batch():
            if self._waiting:
                self._announce_room()
            yield mail

    def try_take(self, priority: int = -1, *, ignoring_deferrable: bool = False) -> Mail | None:
        """Take as `TaskMailbox.try_take`, and wake waiting puts."""
        mail = super().try_take(priority, ignoring_deferrable=ignoring_deferrable)
        if self._waiting:
            self._announce_room()
        return mail

    def take(self, priority: int = -1) -> Mail:
        """Take as `TaskMailbox.take`, and wake waiting puts."""
        mail = super().take(priority)
        if self._waiting:
            self._announce_room()
        return mail

    def drain(self) -> list[Mail]:
        """Drain as `TaskMailbox.drain`, and wake waiting puts."""
        mails = super().drain()
        self._announce_room()
        return mails

    def quiesce(self) -> None:
        """Quiesce as `TaskMailbox.quiesce`; waiting puts raise."""
        try:
            super().quiesce()
        finally:
            self._announce_room()

    def _put_reserved(self, mail: Mail, *, wait: bool) -> None:
        if mail.urgent or self.is_mailbox_thread:
            super().put(mail)
            return
        # In `run_exclusively` a put must not wait: the owner may be waiting for the action to end.
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
                            f"mailbox {self.name} has reached its capacity, {self.capacity_mails} "
                            f"mails; try {mail!r} again later"
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
