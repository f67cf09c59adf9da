"""Waits for requests that other threads of a flow execute."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final, TypeVar

from penstock.core.errors import Closed, Unavailable

T = TypeVar("T")

_COMMAND_LIMIT_S: Final = 300.0


def answer(future: Future[T]) -> T:
    """Wait for a future, and return its result or raise its exception.

    Raises:
        Unavailable: No result arrived in time.
        Closed: The flow is being closed.
    """
    try:
        return future.result(_COMMAND_LIMIT_S)
    except FutureTimeoutError:
        raise Unavailable(
            "the flow did not answer in time: check its status, and try again"
        ) from None
    except CancelledError:
        raise Closed("the flow is being closed") from None
