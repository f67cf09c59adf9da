"""Errors of the client, in addition to those of `penstock.core.errors`."""

from __future__ import annotations

from typing import Final

from penstock.core.errors import InvalidRequest, PenstockError, Unavailable


class AnswerLost(PenstockError):
    """The connection broke before a publish was answered: the message may or may not be stored.

    Publish it again if duplicates are acceptable (``retry=True`` does that), or check first.
    """


# NSQ's codes for requests that are permanently invalid.
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
    """Convert an error of the server to an exception.

    Args:
        text: The server's text, which begins with NSQ's code.
        address: Address of the server.
    """
    shown = text[:512].decode("utf-8", "backslashreplace")
    if shown.split(" ", 1)[0] in _REQUEST_IS_WRONG:
        return InvalidRequest(f"{address} refuses: {shown}")
    return Unavailable(f"{address} cannot serve the request now: {shown}; try again later")
