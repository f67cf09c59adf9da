"""Options of the servers that authorize the broker's clients."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class AuthMethod(enum.StrEnum):
    """HTTP method of requests to an authorization server."""

    GET = "get"
    POST = "post"


@dataclass(frozen=True, slots=True)
class AuthOptions:
    """The authorization servers.

    Attributes:
        addresses: ``HOST:PORT`` or URLs; none: clients need only the token.
        method: GET with a query string, or POST with JSON in the body.
        connect_timeout_ms: Longest wait for a connection.
        request_timeout_ms: Longest wait for a whole answer.
        max_answer_bytes: Maximum size of an answer.
    """

    addresses: tuple[str, ...] = ()
    method: AuthMethod = AuthMethod.GET
    connect_timeout_ms: int = 2_000
    request_timeout_ms: int = 5_000
    max_answer_bytes: int = 1_048_576
