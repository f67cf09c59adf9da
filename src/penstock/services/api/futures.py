"""Waiting for an answer of a mailbox on a thread that serves HTTP."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from penstock.core.errors import Unavailable

T = TypeVar("T")

# Below the limits of our clients, so that the answer says what is the matter.
MAILBOX_TIMEOUT_S = 8.0


def settled(answer: Future[T]) -> T:
    """Return what a mailbox answers, or raise what it raises.

    Raises:
        Unavailable: It did not come to it in time, and whether it will is unknown; or it ended
            first.
    """
    try:
        return answer.result(MAILBOX_TIMEOUT_S)
    except FutureTimeoutError:  # narrow: translates; a command that began goes on
        answer.cancel()
        raise Unavailable("the mailbox is busy and did not answer in time; ask again") from None
    except CancelledError:
        raise Unavailable("the mailbox ended before it came to it; ask who comes next") from None
