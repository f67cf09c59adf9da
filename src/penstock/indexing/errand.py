"""Blocking work of a mailbox: one call at a time, on a lane, repeated while there is no answer.

An errand is one kind of such work: polling the broker, persisting, announcing. Its outcome arrives
as mail. After `Unavailable` the same work is retried with growing delays, without a limit; the
supervisor decides when a task takes too long. Any other error goes to the owner. Belongs to the
mailbox thread.

No outcome is lost: an exception of the work, expected or not, goes to the owner as an error; an
exception while the outcome is delivered ends the mailbox's loop.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Closed, Fenced, PenstockError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.waits import WaitTable
    from penstock.indexing.ports import Lanes
    from penstock.mailbox import MailboxProcessor

T = TypeVar("T")

_log = logging.getLogger(__name__)


CALL_RETRY: Final = RetryPolicy(100, 5_000)
"""Delays between the attempts of an errand, unless its owner has others."""


class Calls:
    """Blocking calls of a mailbox: each on a lane, its outcome as mail.

    Args:
        lanes: The lanes.
        processor: The mailbox that receives the outcomes.
    """

    def __init__(self, lanes: Lanes, processor: MailboxProcessor) -> None:
        self._lanes = lanes
        self._processor = processor

    def call(
        self,
        lane: str,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[PenstockError], None],
    ) -> None:
        """Run `work` on a lane, then `done` or `failed` with the outcome, as mail.

        An exception of the work that is not a `PenstockError` goes to `failed` as `Unavailable`,
        because it is unknown how much of the work was done. Exceptions of `done` and `failed` end
        the mailbox's loop. If the lanes are closed, the owner is stopping, and the call is ignored.
        """
        try:
            future = self._lanes.submit(lane, work)
        except Closed:
            return
        except PenstockError as error:
            self._processor.post(partial(failed, error), "a call could not begin")
            return
        self.watch(future, done, failed)

    def watch(
        self,
        future: Future[T],
        done: Callable[[T], None],
        failed: Callable[[PenstockError], None],
    ) -> None:
        """Run `done` or `failed` as mail once a call that others run has ended."""
        future.add_done_callback(lambda ended: self._report(ended, done, failed))

    def _report(
        self,
        ended: Future[T],
        done: Callable[[T], None],
        failed: Callable[[PenstockError], None],
    ) -> None:
        def settle() -> None:
            error = ended.exception()
            if error is None:
                done(ended.result())
            elif isinstance(error, PenstockError):
                failed(error)
            elif isinstance(error, Exception):
                _log.error("a call failed unexpectedly", exc_info=error)
                failed(Unavailable(f"the call failed unexpectedly: {error!r}"))
            else:
                raise error

        # On the lane's thread.
        if not ended.cancelled():
            self._processor.post(settle, "a call ended")


class Errand:
    """One kind of blocking work, at most one call at a time.

    Args:
        name: For logs and for `trouble`.
        lane: The lane that it runs on.
        lanes: The lanes.
        processor: The mailbox that receives the outcome.
        retry: Delays between attempts when there is no answer.
        on_failure: Called with an error that a retry would not fix.
        waits: Records a wait for a dependency.
    """

    def __init__(
        self,
        name: str,
        lane: str,
        lanes: Lanes,
        processor: MailboxProcessor,
        *,
        retry: RetryPolicy,
        on_failure: Callable[[Exception], None],
        waits: WaitTable,
    ) -> None:
        self._name = name
        self._waits = waits
        self._lane = lane
        self._lanes = lanes
        self._processor = processor
        self._retry = retry
        self._on_failure = on_failure
        self._failures = 0
        self.busy = False
        self.trouble = ""

    def start(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Run `work` on the lane until it succeeds; then `done` with its result, as mail.

        `work` is called for each attempt, so it must create anything that each attempt needs anew.
        `done` is also called again if it raises `Unavailable`; the errand is busy until it
        succeeds.
        """
        assert not self.busy, f"{self._name} is under way"
        self.busy = True
        self._submit(work, done)

    def _submit(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        future: Future[T]
        try:
            future = self._lanes.submit(self._lane, work)
        except Closed:
            return  # The owner is stopping; the next process starts again.
        except PenstockError as error:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(lambda ended: self._report(ended, work, done))

    def _report(self, ended: Future[T], work: Callable[[], T], done: Callable[[T], None]) -> None:
        # On the lane's thread.
        self._processor.post(lambda: self._settle(ended, work, done), "%s ended", self._name)

    def _settle(self, ended: Future[T], work: Callable[[], T], done: Callable[[T], None]) -> None:
        if ended.cancelled():
            return
        error = ended.exception()
        if error is None:
            self._deliver(ended.result(), done)
        elif isinstance(error, Unavailable) and not isinstance(error, Fenced):
            self._try_again(error, lambda: self._submit(work, done))
        elif isinstance(error, Exception):
            self.busy = False
            self.trouble = f"{self._name}: {error}"
            self._waits.ended(self._name)
            self._on_failure(error)
        else:
            raise error

    def _deliver(self, result: T, done: Callable[[T], None]) -> None:
        """Deliver a result; a full disk there is no reason to repeat the work."""
        try:
            done(result)
        except Fenced as error:  # The result is not needed: the term is over.
            self.busy = False
            self.trouble = f"{self._name}: {error}"
            self._waits.ended(self._name)
        except Unavailable as error:
            self._try_again(error, lambda: self._deliver(result, done))
        else:
            self.busy, self.trouble, self._failures = False, "", 0
            self._waits.ended(self._name)

    def _try_again(self, error: Unavailable, action: Callable[[], None]) -> None:
        self._failures += 1
        self.trouble = f"{self._name}: {error}"
        delay_ms = self._retry.delay_ms(self._failures)
        self._waits.failed(self._name, error, tries=self._failures)
        _log.info("%s: retrying in %d ms: %s", self._name, delay_ms, error)
        self._processor.timers.schedule_after(delay_ms, action, f"{self._name} again")
