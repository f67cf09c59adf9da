"""Runs a user's handler over messages, a bounded number at the same time.

Owns what a handler's end means: it returned: finish; it failed: requeue, later with each attempt;
too many attempts: give up. Does not own where messages come from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.core.errors import counted

if TYPE_CHECKING:
    from penstock.client.inbox import Inbox
    from penstock.client.message import Message
    from penstock.client.options import ConsumerOptions

_logger = logging.getLogger(__name__)

Handler = Callable[["Message"], Awaitable[None]]
Outcome = Callable[[bool], None]
"""Is told of each handler whether it returned."""


class Handling:
    """Workers that take messages from an inbox, as many as have something to do.

    Args:
        handler: What is done with each message.
        inbox: Where they come from.
        options: What happens when it fails.
        concurrency: Handlers that run at the same time.
        outcome: Is told how it went.

    Attributes:
        succeeded: Handlers that returned.
        failed: Handlers that raised.
        given_up: Messages that were finished for having failed too often.
    """

    def __init__(
        self,
        handler: Handler,
        inbox: Inbox,
        options: ConsumerOptions,
        concurrency: int,
        outcome: Outcome,
    ) -> None:
        self._handler = handler
        self._inbox = inbox
        self._options = options
        self._concurrency = concurrency
        self._outcome = outcome
        self.succeeded = self.failed = self.given_up = 0
        self._workers: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Begin with what is in the inbox."""
        if len(self._workers) < self._concurrency:
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def cancel(self) -> None:
        """Stop handlers that still run; their messages come again."""
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)

    async def _work(self) -> None:
        while (message := self._inbox.pop()) is not None:
            # A handler that does not wait leaves nothing for others: one more worker is enough,
            # which wakes the next when it has found something.
            if len(self._inbox):
                self.wake()
            try:
                await self._handle(message)
            except Exception:
                # The top of a task: the messages behind it have their turn.
                _logger.exception("the answer to %r cannot be sent: it comes again", message)

    async def _handle(self, message: Message) -> None:
        limit = self._options.max_attempts
        given_up = limit is not None and message.attempts > limit
        handler = self._options.give_up if given_up else self._handler
        try:
            if handler is not None:
                await handler(message)
        except Exception:  # the boundary to the user's code
            _logger.exception("the handler failed over %r: it comes again", message)
            if not message.answered:
                message.requeue(self._delay_ms(message))
            self.failed += 1
            self._outcome(False)  # noqa: FBT003  # it failed
            return
        if not message.answered:
            message.finish()
        if given_up:
            _logger.warning(
                "%r was given up, for it failed %s", message, counted(message.attempts - 1, "time")
            )
            self.given_up += 1
        else:
            self.succeeded += 1
            self._outcome(True)  # noqa: FBT003  # it returned

    def _delay_ms(self, message: Message) -> int:
        options = self._options
        return min(options.requeue_delay_ms * message.attempts, options.max_requeue_delay_ms)
