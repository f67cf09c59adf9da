"""A received message, and its answer.

Owns that a message is answered once. Does not own the connection on which it was received, which is
behind the protocol `Answers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable


class Answers(Protocol):
    """Sends answers. Each method returns False if the connection has ended."""

    def finish(self, message_id: bytes) -> bool:
        """Finish a message."""
        ...

    def requeue(self, message_id: bytes, delay_ms: int) -> bool:
        """Requeue a message."""
        ...

    def touch(self, message_id: bytes) -> bool:
        """Extend the time-out of a message."""
        ...


class Message:
    """One delivery of a message. Finish or requeue it before its time-out.

    Attributes:
        id: Its id, 16 hex digits; the same at each delivery.
        body: The payload.
        attempts: Number of deliveries, including this one.
        timestamp_ns: Time of publication, epoch nanoseconds by the server's clock.
        answered: It was finished or requeued.
    """

    __slots__ = ("_answers", "answered", "attempts", "body", "id", "timestamp_ns")

    def __init__(
        self, timestamp_ns: int, attempts: int, message_id: bytes, body: bytes, answers: Answers
    ) -> None:
        self.timestamp_ns = timestamp_ns
        self.attempts = attempts
        self.id = message_id
        self.body = body
        self.answered = False
        self._answers = answers

    def __repr__(self) -> str:
        name, size = self.id.decode("ascii", "backslashreplace"), len(self.body)
        return f"<Message {name}, attempt {self.attempts}, {size} bytes>"

    def finish(self) -> bool:
        """Finish the message, without waiting. Answers of one loop iteration are combined.

        Returns:
            False if its connection has ended: it will be delivered again.

        Raises:
            Conflict: It was answered before.
        """
        self._answer()
        try:
            return self._answers.finish(self.id)
        except BaseException:
            self.answered = False
            raise

    def requeue(self, delay_ms: int = 0) -> bool:
        """Redeliver the message after a delay. Returns and raises as `finish`."""
        self._answer()
        try:
            return self._answers.requeue(self.id, max(0, delay_ms))
        except BaseException:
            self.answered = False
            raise

    def touch(self) -> bool:
        """Restart the message's time-out. Returns and raises as `finish`."""
        if self.answered:
            raise Conflict(f"{self!r} was answered before: touch it earlier")
        return self._answers.touch(self.id)

    def is_from(self, answers: Answers) -> bool:
        """Return whether the message was received on this connection."""
        return self._answers is answers

    def _answer(self) -> None:
        if self.answered:
            raise Conflict(f"{self!r} was answered before: answer a delivery once")
        self.answered = True


def finish_all(messages: Iterable[Message]) -> int:
    """Finish messages; return how many of them are on open connections.

    Raises:
        Conflict: One was answered before; those before it are finished.
    """
    return sum(message.finish() for message in messages)
