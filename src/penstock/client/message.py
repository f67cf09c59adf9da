"""A message as a consumer has it, and its answer.

Owns that a message is answered once. Does not own the connection that it came on, which is behind
the protocol `Answers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable


class Answers(Protocol):
    """Where answers go. Each method returns False when the connection is gone."""

    def finish(self, message_id: bytes) -> bool:
        """Send that it is done with."""
        ...

    def requeue(self, message_id: bytes, delay_ms: int) -> bool:
        """Send that it shall come again."""
        ...

    def touch(self, message_id: bytes) -> bool:
        """Send that it needs more time."""
        ...


class Message:
    """One delivery of a message. To be finished or requeued before its time is over.

    Attributes:
        id: Its name, 16 hex digits; the same whenever it is delivered.
        body: What was published.
        attempts: How often it was delivered, this time included.
        timestamp_ns: When it was published, epoch nanoseconds by the server's clock.
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
        """Say that it is done with. Does not wait; answers of a moment go out together.

        Returns:
            False when the connection it came on is gone: it will be delivered again.

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
        """Say that it shall be delivered again, after a delay. Returns and raises as `finish`."""
        self._answer()
        try:
            return self._answers.requeue(self.id, max(0, delay_ms))
        except BaseException:
            self.answered = False
            raise

    def touch(self) -> bool:
        """Ask for as much time again as it had at first. Returns and raises as `finish`."""
        if self.answered:
            raise Conflict(f"{self!r} was answered before: touch it earlier")
        return self._answers.touch(self.id)

    def came_on(self, answers: Answers) -> bool:
        """Return whether this is where its answer goes."""
        return self._answers is answers

    def _answer(self) -> None:
        if self.answered:
            raise Conflict(f"{self!r} was answered before: answer a delivery once")
        self.answered = True


def finish_all(messages: Iterable[Message]) -> int:
    """Finish messages; return how many of them are on connections that are still there.

    Raises:
        Conflict: One was answered before; those in front of it are finished.
    """
    return sum(message.finish() for message in messages)
