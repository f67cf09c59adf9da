"""Inbox of the scheduler: requests, and events from timers, pool threads and its own thread.

Owns how an event reaches the scheduler's thread. Does not own the handling of events (`scheduler`).
Each module defines the events that it reports.

Invariants: events are handled one at a time, on the scheduler's thread. An event that is added
while another one is handled follows it before the next mail, so handling is never nested. An event
that cannot be delivered ends the loop.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from penstock.mailbox import Mail
from penstock.mailbox.event_mail import EventMail

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from penstock.mailbox import MailboxProcessor, Timer

T = TypeVar("T")


class SchedulerEvent:
    """Base class of the scheduler's events.

    Attributes:
        description: For logs and errors of the mailbox.
    """

    __slots__ = ()
    description: ClassVar[str]


class SchedulerInbox:
    """Delivers events and requests to the scheduler.

    Args:
        mailbox: Mailbox of the scheduler.
        receive: Handles an event, and those added meanwhile; called on the mailbox's thread.
    """

    def __init__(
        self, mailbox: MailboxProcessor, receive: Callable[[SchedulerEvent], None]
    ) -> None:
        self._events = EventMail[SchedulerEvent](mailbox, receive, "scheduler event")
        self._mailbox = mailbox.mailbox
        self._executor = mailbox.main_executor
        self._timers = mailbox.timers
        self._receive = receive
        self._added: deque[SchedulerEvent] = deque()

    # Any thread

    def post(self, event: SchedulerEvent) -> None:
        """Report an event as mail; ignored if the mailbox is closed.

        If memory does not suffice for the mail, the scheduler's loop ends: after the loss of a
        run's end, for example, the component would never run again.
        """
        self._events.put(event, event.description)

    def fail(self, error: BaseException) -> None:
        """End the scheduler's loop, because an event could not be reported."""
        self._events.fail(error)

    def submit_change(
        self, request: Callable[[], T], description: str, *arguments: object
    ) -> Future[T]:
        """Run a request that changes state: see `MailboxExecutor.submit_change`."""
        return self._executor.submit_change(request, description, *arguments)

    def submit_query(self, request: Callable[[], T], description: str) -> Future[T]:
        """Run a request that changes nothing: see `MailboxExecutor.submit`."""
        return self._executor.submit(request, description)

    def put(self, request: Callable[[], None], description: str, *arguments: object) -> None:
        """Run a request that has a future of its own; cancel it if the mailbox closes first."""
        self._mailbox.put(Mail(request, description=description, arguments=arguments))

    # The scheduler's thread

    def post_after(self, delay_ms: float, event: SchedulerEvent) -> Timer:
        """Report an event after a delay."""
        receive = partial(self._receive, event)
        return self._timers.schedule_after(delay_ms, receive, event.description)

    def post_at(self, epoch_ms: int, event: SchedulerEvent) -> Timer:
        """Report an event at a wall time."""
        return self._timers.schedule_at(epoch_ms, partial(self._receive, event), event.description)

    def post_every(self, interval_ms: float, event: SchedulerEvent) -> Timer:
        """Report an event repeatedly."""
        receive = partial(self._receive, event)
        return self._timers.schedule_every(interval_ms, receive, event.description)

    def add(self, event: SchedulerEvent) -> None:
        """Report an event that is handled after the current event or request."""
        self._added.append(event)

    def take_added(self) -> SchedulerEvent | None:
        """Take the first added event, if there is one."""
        return self._added.popleft() if self._added else None
