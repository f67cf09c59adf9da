"""What the broker is told of the servers that authorize its clients."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class AuthMethod(enum.StrEnum):
    """How an authorization server is asked."""

    GET = "get"
    POST = "post"


@dataclass(frozen=True, slots=True)
class AuthOptions:
    """The authorization servers.

    Attributes:
        addresses: ``HOST:PORT`` or URLs; none: clients need no authorization but the token.
        method: With the question in the query string, or as JSON in the body.
        connect_timeout_ms: Longest wait for a connection.
        request_timeout_ms: Longest wait for a whole answer.
        max_answer_bytes: Largest answer.
    """

    addresses: tuple[str, ...] = ()
    method: AuthMethod = AuthMethod.GET
    connect_timeout_ms: int = 2_000
    request_timeout_ms: int = 5_000
    max_answer_bytes: int = 1_048_576
