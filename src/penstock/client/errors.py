"""Errors of the client beside those of `penstock.core.errors`."""

from __future__ import annotations

from typing import Final

from penstock.core.errors import InvalidRequest, PenstockError, Unavailable


class AnswerLost(PenstockError):
    """The connection broke before a publish was answered: the message may be there or not.

    Publish it again if it may be there twice (``retry=True`` does that), or look first.
    """


# What the server says of a request that will never be right.
_REQUEST_IS_WRONG: Final = frozenset(
    {
        "E_INVALID",
        "E_BAD_BODY",
        "E_BAD_TOPIC",
        "E_BAD_CHANNEL",
        "E_BAD_MESSAGE",
        "E_BAD_PROTOCOL",
        "E_IDENTIFY_FAILED",
        "E_AUTH_FIRST",
        "E_AUTH_DISABLED",
        "E_AUTH_FAILED",
        "E_UNAUTHORIZED",
    }
)


def error_of(text: bytes, address: str) -> PenstockError:
    """Return the error that says what to do about one of the server's.

    Args:
        text: The server's words, which begin with NSQ's code.
        address: The server's.
    """
    shown = text[:512].decode("utf-8", "backslashreplace")
    if shown.split(" ", 1)[0] in _REQUEST_IS_WRONG:
        return InvalidRequest(f"{address} refuses: {shown}")
    return Unavailable(f"{address} cannot do it now: {shown}; try again later")
