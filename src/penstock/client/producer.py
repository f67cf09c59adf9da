"""Producer that publishes to one server, with many publishes in progress at the same time.

Owns the publishes in progress and their result when the connection ends:

    not sent yet           sent on the next connection; fails if connecting fails
    sent, not answered     `AnswerLost`: the server may or may not have accepted it
    sent behind a refused  `Unavailable`: the server closed the connection and did not accept it
    with retry=True        sent again in each of these cases, in order, until it is answered

`SendWindow` bounds the publishes in progress by count and by bytes, first come, first served; a
publish larger than the window is sent alone.

Invariant: the server answers in order, so each answer belongs to the oldest unanswered publish.
A producer belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Self

from penstock.client.errors import AnswerLost, error_of
from penstock.client.options import Environment, ProducerOptions
from penstock.client.v2 import v2_protocol
from penstock.client.v2.nsq_connection import NsqConnection, open_connection
from penstock.core.backoff import Backoff
from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import Closed, InvalidRequest, PenstockError, Unavailable, counted
from penstock.core.loop_tasks import start_owned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client.v2.v2_protocol import Frame


class _Waiter:
    """An item that waits to enter a window.

    Attributes:
        size: Size of the item.
        turn: Completed when the item was admitted.
        is_admitted: The item counts in the window.
    """

    __slots__ = ("is_admitted", "size", "turn")

    def __init__(self, size: int, turn: asyncio.Future[None]) -> None:
        self.size = size
        self.turn = turn
        self.is_admitted = False


class SendWindow:
    """Window of concurrent work. A single item larger than the window is admitted alone.

    Args:
        max_count: Maximum number of items.
        max_bytes: Maximum total size of the items.

    Attributes:
        waiting: Items that wait, in the order in which they are admitted.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._count = 0
        self._bytes = 0
        self.waiting: deque[_Waiter] = deque()

    @property
    def count(self) -> int:
        """Number of admitted items."""
        return self._count

    @property
    def bytes(self) -> int:
        """Total size of the admitted items."""
        return self._bytes

    def try_enter(self, size: int) -> bool:
        """Enter if the item fits and no other one waits."""
        if self.waiting or not self._fits(size):
            return False
        self._take(size)
        return True

    async def enter(self, size: int) -> None:
        """Wait until the item fits, and enter."""
        if self.try_enter(size):
            return
        waiter = _Waiter(size, asyncio.get_running_loop().create_future())
        self.waiting.append(waiter)
        try:
            await waiter.turn
        except BaseException:
            if waiter.is_admitted:
                self.free(size)
                waiter.is_admitted = False
            self.admit()  # later waiters may fit
            raise

    def leave(self, size: int) -> None:
        """Leave, and admit waiting items."""
        self.free(size)
        if self.waiting:
            self.admit()

    def free(self, size: int) -> None:
        """Leave without admitting waiting items; call `admit` if there are some.

        It calls no other code: the item has left if it returns, and has not if it raises.
        """
        self._count -= 1
        self._bytes -= size

    def admit(self) -> None:
        """Admit waiting items that fit.

        A waiter that cannot be woken, because its event loop raises, gives its place back. The
        first such exception is raised after the others were admitted.
        """
        failure: BaseException | None = None
        while self.waiting:
            waiter = self.waiting[0]
            if not waiter.turn.done():  # its task was not cancelled
                if not self._fits(waiter.size):
                    break
                self._take(waiter.size)
                try:
                    waiter.is_admitted = True
                    waiter.turn.set_result(None)
                except BaseException as error:  # noqa: BLE001 - raised below
                    self.free(waiter.size)
                    waiter.is_admitted = False
                    if not waiter.turn.done():
                        waiter.turn.set_exception(error)
                    failure = failure or error
            self.waiting.popleft()
        if failure is not None:
            raise failure

    def _fits(self, size: int) -> bool:
        return not self._count or (
            self._count < self._max_count and self._bytes + size <= self._max_bytes
        )

    def _take(self, size: int) -> None:
        self._count += 1
        self._bytes += size


_logger = logging.getLogger(__name__)


class _Publish:
    """One command that expects an answer.

    Attributes:
        in_window: It counts in the window of publishes in progress.
    """

    __slots__ = ("answer", "data", "in_window", "retry")

    def __init__(self, data: bytes, answer: asyncio.Future[None], *, retry: bool) -> None:
        self.data = data
        self.answer = answer
        self.retry = retry
        self.in_window = True


class Producer:
    """Publishes to one server, in one event loop. As a context manager, it connects and closes.

    Args:
        address: Address of the server, such as ``127.0.0.1:4150`` or ``unix:/path``.
        options: Limits and settings of the connection.
        environment: Sources of randomness and delays.
    """

    def __init__(
        self,
        address: str,
        *,
        options: ProducerOptions | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.address = address
        self._options = options or ProducerOptions()
        self._environment = environment or Environment()
        self._backoff = Backoff(
            self._options.connection.backoff.policy, self._environment.random, free_retries=1
        )
        self._window = SendWindow(
            self._options.max_in_flight_count, self._options.max_in_flight_bytes
        )
        self._connection: NsqConnection | None = None
        self._sent: deque[_Publish] = deque()
        self._unsent: deque[_Publish] = deque()
        self._refused: PenstockError | None = None
        self._closed: Closed | None = Closed("the producer was not started: use `async with`")
        # Why there is no connection; None while connected or connecting.
        self._down: PenstockError | None = None
        self._ended = asyncio.Event()
        self._drained = asyncio.Event()
        self._reconnecting_task: asyncio.Task[object] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect.

        Raises:
            InvalidRequest: The address is invalid, or the server refuses permanently.
            Unavailable: The server cannot be reached, or refuses for now.
        """
        self._ended.set()
        connection = await self._connect()
        try:
            self._reconnecting_task = start_owned(
                "reconnecting", self._keep_connected(), self._task_failed
            )
        except BaseException as error:
            connection.abort(Closed(f"the producer could not be started: {error!r}"))
            raise
        self._closed = None

    async def close(self) -> None:
        """Wait for pending answers, and disconnect. Idempotent."""
        self._closed = Closed(f"the producer for {self.address} is closed: create a new one")
        if self._sent:
            self._drained.clear()
            await self._drained.wait()
        if self._reconnecting_task is not None:
            self._reconnecting_task.cancel()
            await asyncio.wait([self._reconnecting_task])
        self._fail_unsent(self._closed)
        if self._connection is not None:
            self._connection.close()
            await self._ended.wait()

    async def publish(
        self, topic: str, message: bytes, *, defer_ms: int | None = None, retry: bool = False
    ) -> None:
        """Publish a message; return when the server has stored it.

        Args:
            topic: The topic; created if it does not exist.
            message: Its bytes, not empty.
            defer_ms: Delay of its delivery.
            retry: Send it again, in order, until it is answered: it may be published twice.

        Raises:
            AnswerLost: The connection broke; the message may or may not have been published. Not
                with `retry`.
            InvalidRequest: The server refuses the message permanently.
            Unavailable: It was not published, because there is no connection or the server cannot
                accept it now. Not with `retry`.
            Closed: The producer was closed, or failed.
        """
        size = len(message)
        if not 0 < size <= self._options.max_message_bytes:
            raise self._wrong_size(size)
        v2_protocol.require_name(topic, "topic")
        if defer_ms is None:
            data = v2_protocol.publish(topic, message)
        elif defer_ms < 0:
            raise InvalidRequest(f"defer_ms must be 0 or more, not {defer_ms}")
        else:
            data = v2_protocol.publish_deferred(topic, defer_ms, message)
        await self._send(data, retry=retry)

    async def publish_many(
        self, topic: str, messages: Sequence[bytes], *, retry: bool = False
    ) -> None:
        """Publish a batch in one command, which Penstock stores completely or not at all.

        Args:
            topic: The topic; created if it does not exist.
            messages: One or more messages, none of them empty.
            retry: As in `publish`.

        Raises:
            AnswerLost: As in `publish`.
            InvalidRequest: As in `publish`, or the batch is too large.
            Unavailable: As in `publish`. nsqd may have stored the first part.
            Closed: The producer was closed, or failed.
        """
        sizes = list(map(len, messages))
        if not sizes:
            raise InvalidRequest("a batch without messages: do not publish it")
        for extreme in (min(sizes), max(sizes)):
            if not 0 < extreme <= self._options.max_message_bytes:
                raise self._wrong_size(extreme)
        limit = self._options.max_body_bytes
        if (body_bytes := v2_protocol.batch_body_bytes(sizes)) > limit:
            raise InvalidRequest(
                f"a batch of {counted(len(sizes), 'message')} has {body_bytes} bytes, the limit is "
                f"{limit}: make it smaller, or raise max_body_bytes here and at the server"
            )
        v2_protocol.require_name(topic, "topic")
        await self._send(v2_protocol.publish_many(topic, messages), retry=retry)

    # -- callbacks of the connection

    def received(self, frames: list[Frame]) -> None:
        """Process answers."""
        sent = self._sent
        for frame in frames:
            if isinstance(frame, v2_protocol.ResponseFrame) and sent:
                self._refused = None
                self._complete(sent[0], None)
                sent.popleft()  # last: if completing it raises, the end of the connection fails it
            elif isinstance(frame, v2_protocol.ErrorFrame):
                self._refuse(frame.data)
            else:
                self._protest()
                return
        if self._refused is None:
            self._backoff.reset()
        if not sent:
            self._drained.set()

    def disconnected(self, reason: PenstockError) -> None:
        """Retry or fail the publishes that were sent and not answered."""
        if self._connection is not None and self._connection.heartbeat_count:
            self._backoff.reset()  # the connection lasted, although nothing was published
        self._connection = None
        sent, self._sent = self._sent, deque()
        steps = CleanupSteps()
        for publish in sent:
            if publish.retry and not publish.answer.done():
                self._unsent.append(publish)  # it waits behind a refused publish
            elif self._refused is None:
                lost = AnswerLost(f"{reason}; the message may or may not have been published")
                self._fail(publish, lost, steps)
            else:
                text = f"not published, because of another publish: {self._refused}"
                self._fail(publish, Unavailable(text), steps)
        if self._closed is not None:  # it does not connect again
            steps.take(self._fail_unsent, self._closed)
        steps.take(self._drained.set)
        steps.take(self._ended.set)
        steps.finish()

    # -- sending

    async def _send(self, data: bytes, *, retry: bool) -> None:
        self._check_connected(retry=retry)
        if not self._window.try_enter(len(data)):
            await self._window.enter(len(data))
        try:
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            publish = _Publish(data, answer, retry=retry)
            self._check_connected(retry=retry)  # the wait may have been long
            if self._connection is not None:
                self._send_now(publish, self._connection)
            else:
                self._unsent.append(publish)
        except BaseException:
            self._window.leave(len(data))
            raise
        await answer

    def _send_now(self, publish: _Publish, connection: NsqConnection) -> None:
        self._sent.append(publish)
        try:
            connection.send(publish.data)
        except BaseException:
            self._sent.pop()  # otherwise the next answer would be assigned to it
            raise

    def _check_connected(self, *, retry: bool) -> None:
        """Refuse a publish that would have to wait for the next attempt to connect."""
        if self._closed is not None:
            raise Closed(str(self._closed)) from self._closed.__cause__
        if self._down is not None and not retry:
            raise Unavailable(f"not published, because there is no connection: {self._down}")

    def _complete(self, publish: _Publish, error: PenstockError | None) -> None:
        """Complete a publish, and free its place, even if its caller was cancelled. Idempotent."""
        try:
            if not publish.answer.done():
                if error is None:
                    publish.answer.set_result(None)
                else:
                    publish.answer.set_exception(error)
        finally:
            if publish.in_window:
                self._window.free(len(publish.data))
                publish.in_window = False
            if self._window.waiting:
                self._window.admit()

    def _wrong_size(self, size: int) -> InvalidRequest:
        if not size:
            return InvalidRequest("a message is empty: do not publish it")
        return InvalidRequest(
            f"a message of {size} bytes, the limit is {self._options.max_message_bytes}: publish a "
            "smaller one, or raise max_message_bytes here and at the server"
        )

    # -- refusals

    def _refuse(self, text: bytes) -> None:
        """Fail the oldest sent publish; the server closes the connection after this error."""
        error = error_of(text, self.address)
        self._refused = error
        if not self._sent:
            return
        if self._sent[0].retry and isinstance(error, Unavailable):
            self._unsent.append(self._sent.popleft())
        else:
            self._complete(self._sent[0], error)
            self._sent.popleft()

    def _protest(self) -> None:
        if self._connection is not None:
            text = f"{self.address} sent an unexpected answer: it does not speak NSQ's protocol"
            self._connection.abort(InvalidRequest(text))

    # -- the connection

    async def _connect(self) -> NsqConnection:
        self._refused = None
        options = self._options.connection
        connection = await open_connection(self.address, options, self, self._environment)
        self._connection = connection
        self._ended.clear()
        try:
            while self._unsent:
                publish = self._unsent[0]
                if publish.answer.done():  # its caller no longer waits
                    self._complete(publish, None)
                else:
                    self._send_now(publish, connection)
                self._unsent.popleft()
        except BaseException:
            connection.abort(Unavailable(f"{self.address}: publishes cannot be sent; try again"))
            raise
        return connection

    async def _keep_connected(self) -> None:
        while True:
            await self._ended.wait()
            reason = self._refused or Unavailable(f"{self.address} ended the connection")
            while self._connection is None:
                pause_s = self._backoff.next_s()
                if pause_s:
                    self._fail_not_waiting(reason)
                    await self._environment.sleep(pause_s)
                self._down = None
                try:
                    await self._connect()
                except PenstockError as error:
                    _logger.warning("no connection to publish on: %s", error)
                    reason = error
                except Exception as error:
                    # The outermost handler of a task: the next attempt must follow.
                    _logger.exception("no connection to publish on")
                    reason = Unavailable(f"{self.address} cannot be reached: {error!r}; try again")

    def _fail_not_waiting(self, reason: PenstockError) -> None:
        """Fail publishes that cannot wait for the next attempt, or that it cannot help."""
        self._down = reason
        kept: deque[_Publish] = deque()
        failed: list[_Publish] = []
        for publish in self._unsent:
            waits = publish.retry and isinstance(reason, Unavailable) and not publish.answer.done()
            (kept if waits else failed).append(publish)
        steps = CleanupSteps()
        self._unsent = kept
        for publish in failed:
            self._fail(publish, reason, steps)
        steps.finish()

    def _task_failed(self, name: str, error: BaseException) -> None:
        """Fail publishes that no later connection will send, and refuse further ones."""
        text = f"the producer for {self.address} failed: {name}: {error!r}: create a new one"
        _logger.error("%s", text, exc_info=error)
        self._closed = Closed(text)
        self._closed.__cause__ = error
        self._fail_unsent(self._closed)

    def _fail_unsent(self, reason: Closed) -> None:
        steps = CleanupSteps()
        while self._unsent:
            self._fail(self._unsent.popleft(), reason, steps)
        steps.finish()

    def _fail(self, publish: _Publish, error: PenstockError, steps: CleanupSteps) -> None:
        """Complete a publish with an error.

        It is dropped afterwards, so a failed call is repeated once.
        """
        steps.take(self._complete, publish, error)
        if publish.in_window or not publish.answer.done():
            steps.take(self._complete, publish, error)
