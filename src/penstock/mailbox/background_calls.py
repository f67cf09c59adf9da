"""Blocking calls of a mailbox: each runs on a lane, and its outcome arrives as mail.

`CallDispatcher` runs a call once. `BackgroundCall` is one kind of call, such as the polls of the
broker: at most one at a time, repeated with growing delays after `Unavailable`, without a limit.
Both belong to the mailbox thread. The outcome is mail that calls a given function, so this module
does not depend on its callers.

No outcome is lost: an exception of the work, expected or not, goes to the owner as an error; an
exception while the outcome is delivered ends the mailbox's loop.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Closed, Fenced, PenstockError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.waits import WaitTable
    from penstock.mailbox.lanes import Lanes
    from penstock.mailbox.mailbox_processor import MailboxProcessor

T = TypeVar("T")

_log = logging.getLogger(__name__)


CALL_RETRY: Final = RetryPolicy(100, 5_000)
"""Delays between the attempts of a background call, unless its owner has others."""


class CallDispatcher:
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
        future.add_done_callback(partial(self._post_outcome, done, failed))

    def _post_outcome(
        self,
        done: Callable[[T], None],
        failed: Callable[[PenstockError], None],
        ended: Future[T],
    ) -> None:
        with _loop_gets_errors(self._processor):
            if not ended.cancelled():
                self._processor.post(_outcome(ended, done, failed), "a call ended")


def _outcome(
    ended: Future[T], done: Callable[[T], None], failed: Callable[[PenstockError], None]
) -> Callable[[], None]:
    """Return the command that delivers the outcome of a call."""
    error = ended.exception()
    if error is None:
        return partial(done, ended.result())
    if isinstance(error, PenstockError):
        return partial(failed, error)
    if isinstance(error, Exception):
        _log.error("a call failed unexpectedly", exc_info=error)
        return partial(failed, Unavailable(f"the call failed unexpectedly: {error!r}"))
    return partial(_raise, error)


def _raise(error: BaseException) -> None:
    raise error


@contextmanager
def _loop_gets_errors(processor: MailboxProcessor) -> Iterator[None]:
    """End the loop of the mailbox if the outcome of a call cannot be posted.

    Used on the lane's thread, where a future only logs the exceptions of its callbacks.
    """
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - the mailbox gets it
        with suppress(Closed):  # Then the outcome is not needed.
            processor.report_throwable(error)


class BackgroundCall:
    """One kind of blocking call, at most one at a time.

    Args:
        name: For logs and for `last_error`.
        lane: The lane that it runs on.
        lanes: The lanes.
        processor: The mailbox that receives the outcome.
        retry: Delays between attempts when there is no answer.
        waits: Records a wait for a dependency.

    Attributes:
        busy: Whether a call is under way, including the delivery of its outcome.
        last_error: The last error; empty after a success.
    """

    def __init__(
        self,
        name: str,
        lane: str,
        lanes: Lanes,
        processor: MailboxProcessor,
        *,
        retry: RetryPolicy,
        waits: WaitTable,
    ) -> None:
        self._name = name
        self._waits = waits
        self._lane = lane
        self._lanes = lanes
        self._processor = processor
        self._retry = retry
        self._failures = 0
        self.busy = False
        self.last_error = ""

    def start(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Run `work` on the lane until it succeeds; then `done` with its result, as mail.

        If `work` raises an error that a retry would not fix, `failed` gets it, as mail.

        `work` is called for each attempt, so it must itself create all objects that only serve one
        attempt. `done` is also called again if it raises `Unavailable`: a full disk does not
        require the work to be repeated.
        """
        assert not self.busy, f"{self._name} is under way"
        self.busy = True
        self._submit(work, done, failed)

    def _submit(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
    ) -> None:
        future: Future[T]
        self._waits.begin_try(self._name)
        try:
            future = self._lanes.submit(self._lane, work)
        except Closed:
            return  # The owner is stopping; the next process starts again.
        except PenstockError as error:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(partial(self._post_outcome, work, done, failed))

    def _post_outcome(
        self,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        ended: Future[T],
    ) -> None:
        # On the lane's thread.
        with _loop_gets_errors(self._processor):
            if ended.cancelled():
                return
            error = ended.exception()
            if error is None:
                self._deliver(partial(done, ended.result()))
            elif isinstance(error, Unavailable) and not isinstance(error, Fenced):
                again = partial(self._try_again, error, partial(self._submit, work, done, failed))
                self._processor.post(again, "%s failed", self._name)
            elif isinstance(error, Exception):
                self._deliver(partial(failed, error), error)
            else:
                self._processor.post(partial(_raise, error), "%s was interrupted", self._name)

    def _deliver(self, command: Callable[[], object], error: Exception | None = None) -> None:
        """Run the command that takes the outcome, as mail. Any thread."""
        self._processor.post(partial(self._run, command, error), "%s ended", self._name)

    def _run(self, command: Callable[[], object], error: Exception | None) -> None:
        """Run the command that takes the outcome; run it again later if it raises `Unavailable`."""
        try:
            command()
        except Fenced as fenced:
            error = fenced  # The term is over, and the outcome is not needed.
        except Unavailable as refusal:
            self._try_again(refusal, partial(self._deliver, command, error))
            return
        self.busy = False
        if error is None:
            self.last_error, self._failures = "", 0
        else:
            self.last_error = f"{self._name}: {error}"
        self._waits.ended(self._name)

    def _try_again(self, error: Unavailable, action: Callable[[], None]) -> None:
        self._failures += 1
        self.last_error = f"{self._name}: {error}"
        delay_ms = self._retry.delay_ms(self._failures)
        self._waits.failed(self._name, error, tries=self._failures)
        _log.info("%s: retrying in %d ms: %s", self._name, delay_ms, error)
        self._processor.timers.schedule_after(delay_ms, action, f"{self._name} again")
