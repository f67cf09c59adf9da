"""Events as mail: reports of a part, or of a lane, to the owner of a mailbox.

A part that reports events gets an `EventReceiver`. `EventMail` is the receiver of a mailbox: it
handles each event in a separate mail. So a part does not depend on its owner, and has completed its
own step when its event is handled. No event is lost: if its mail cannot be put, the loop ends.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.core.errors import Closed
from penstock.mailbox.mail import MailOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.mailbox.mailbox_processor import MailboxProcessor

E = TypeVar("E")
E_contra = TypeVar("E_contra", contravariant=True)


class EventReceiver(Protocol[E_contra]):
    """Takes events of one kind. Any thread may call."""

    def put(self, event: E_contra) -> None:
        """Take an event; no effect if the owner is stopping."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the owner's loop with an error after which its state cannot be trusted."""
        ...


class EventMail(Generic[E]):
    """Events that a mailbox handles, each in a mail of its own.

    Args:
        processor: The mailbox.
        handle: Called with each event on the mailbox thread; if it raises, the loop ends.
        description: Describes the mails in logs and errors.
        is_urgent: Whether an event is handled before all other mails, directly after the present
            one: for events after which other mails would find parts that contradict each other.
    """

    def __init__(
        self,
        processor: MailboxProcessor,
        handle: Callable[[E], object],
        description: str,
        *,
        is_urgent: bool = False,
    ) -> None:
        self._processor = processor
        self._handle = handle
        self._description = description
        self._options = MailOptions.URGENT if is_urgent else MailOptions.DEFAULT

    def put(self, event: E, description: str | None = None) -> None:
        """Handle an event by mail; no effect if the mailbox is quiesced or closed.

        If the mail cannot be made or put, for example because memory ran out, the loop ends with
        that error, which is also raised here.

        Args:
            event: The event.
            description: The description of its mail; None: that of all mails.
        """
        try:
            command = partial(self._handle, event)
        except BaseException as error:
            self.fail(error)
            raise
        self._processor.post(command, description or self._description, options=self._options)

    def fail(self, error: BaseException) -> None:
        """End the loop with an error; no effect if the mailbox is quiesced or closed."""
        with suppress(Closed):
            self._processor.report_throwable(error)


class IgnoredEvents:
    """Receiver that ignores all events."""

    def put(self, event: object) -> None:
        """Ignore an event."""

    def fail(self, error: BaseException) -> None:
        """Ignore an error."""
