"""Runs a user's handler over messages, with bounded concurrency.

Owns the reaction to a handler's outcome: after a return, finish; after an exception, requeue, with
a delay that grows with each attempt; after too many attempts, give up. Does not own the source of
messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import counted
from penstock.core.loop_tasks import start_owned

if TYPE_CHECKING:
    from penstock.client.inbox import Inbox
    from penstock.client.message import Message
    from penstock.client.options import ConsumerOptions

_logger = logging.getLogger(__name__)

Handler = Callable[["Message"], Awaitable[None]]


class HandlerOwner(Protocol):
    """Receives the outcomes of handlers."""

    def note_outcome(self, succeeded: bool) -> None:
        """Record that a handler returned or raised."""
        ...

    def task_failed(self, name: str, error: BaseException) -> None:
        """Handle an exception that is not one of a handler."""
        ...


class HandlerPool:
    """Workers that take messages from an inbox, as many as needed.

    Args:
        handler: Called with each message.
        inbox: Source of the messages.
        options: Delays and limits after failures.
        concurrency: Maximum number of concurrent handlers.
        owner: Receives each outcome.

    Attributes:
        succeeded: Handlers that returned.
        failed: Handlers that raised.
        given_up: Messages that were finished because they failed too often.
    """

    def __init__(
        self,
        handler: Handler,
        inbox: Inbox,
        options: ConsumerOptions,
        concurrency: int,
        owner: HandlerOwner,
    ) -> None:
        self._handler = handler
        self._inbox = inbox
        self._options = options
        self._concurrency = concurrency
        self._owner = owner
        self.succeeded = self.failed = self.given_up = 0
        self._workers: set[asyncio.Task[object]] = set()

    def wake(self) -> None:
        """Begin to process the messages in the inbox."""
        if len(self._workers) < self._concurrency:
            worker = start_owned("handler", self._work(), self._owner.task_failed)
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def cancel(self) -> None:
        """Cancel running handlers; their messages are redelivered."""
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)

    async def _work(self) -> None:
        while waiting := len(self._inbox):
            # One more worker is enough: it wakes the next one when it finds a message. If the
            # handler never awaits, it processes all messages before other workers run. The worker
            # is woken before a message is taken: if that raises, no message is lost.
            if waiting > 1:
                self.wake()
            message = self._inbox.pop()
            assert message is not None
            try:
                await self._handle(message)
            except Exception:
                # The outermost handler of a task: later messages must be processed.
                _logger.exception("cannot send the answer to %r: it will be redelivered", message)

    async def _handle(self, message: Message) -> None:
        limit = self._options.max_attempts
        given_up = limit is not None and message.attempts > limit
        handler = self._options.give_up if given_up else self._handler
        try:
            if handler is not None:
                await handler(message)
        except Exception:  # the boundary to the user's code
            _logger.exception("the handler of %r failed: it will be redelivered", message)
            if not message.answered:
                message.requeue(self._delay_ms(message))
            self.failed += 1
            self._owner.note_outcome(succeeded=False)
            return
        if not message.answered:
            message.finish()
        if given_up:
            _logger.warning(
                "%r was given up after it failed %s", message, counted(message.attempts - 1, "time")
            )
            self.given_up += 1
        else:
            self.succeeded += 1
            self._owner.note_outcome(succeeded=True)

    def _delay_ms(self, message: Message) -> int:
        options = self._options
        return min(options.requeue_delay_ms * message.attempts, options.max_requeue_delay_ms)
