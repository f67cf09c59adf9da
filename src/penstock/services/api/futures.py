"""Wait for an answer of a mailbox on a thread that serves HTTP."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from penstock.core.errors import Unavailable

T = TypeVar("T")

# Below the time limits of Penstock's clients, so that they receive this error.
MAILBOX_TIMEOUT_S = 8.0


def result_of(answer: Future[T]) -> T:
    """Return a mailbox's answer, or raise its error.

    Raises:
        Unavailable: The mailbox did not answer in time, so the outcome is unknown; or it ended
            first.
    """
    try:
        return answer.result(MAILBOX_TIMEOUT_S)
    except FutureTimeoutError:  # narrow: a command that began continues
        answer.cancel()
        raise Unavailable("the mailbox is busy and did not answer in time; try again") from None
    except CancelledError:
        raise Unavailable(
            "the mailbox ended before this request; try again with its successor"
        ) from None
