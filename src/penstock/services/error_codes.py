"""Penstock's errors in HTTP answers: one table for servers and clients.

Owns the HTTP status and the code of each error class, and the reverse mapping. Druid's bodies are
`{"error": text}`; Penstock adds `errorCode`, so that a client raises the class that the server
raised.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.errors import (
    Closed,
    Conflict,
    CorruptData,
    Dependency,
    Full,
    InvalidRequest,
    LockRevoked,
    NotFound,
    PenstockError,
    Unavailable,
)


class BodyTooLarge(InvalidRequest):
    """The body of a request exceeds the limit of its port or route."""


# Druid answers 400 also if a state forbids the request ("already suspended").
_TABLE: tuple[tuple[type[PenstockError], int, str], ...] = (
    (BodyTooLarge, 413, "invalidInput"),
    (InvalidRequest, 400, "invalidInput"),
    (Conflict, 400, "conflict"),
    (LockRevoked, 400, "lockRevoked"),
    (NotFound, 404, "notFound"),
    (Full, 429, "queueFull"),
    (Unavailable, 503, "unavailable"),
    (Closed, 503, "closed"),
    (CorruptData, 500, "corruptData"),
    (PenstockError, 500, "general"),
)

_BY_CODE: Mapping[str, type[PenstockError]] = {
    "conflict": Conflict,
    "lockRevoked": LockRevoked,
    "notFound": NotFound,
    "queueFull": Full,
    "unavailable": Unavailable,
    "closed": Unavailable,  # a component of the server is closed, not of the caller
    "invalidInput": InvalidRequest,
}

_DEPENDENCIES = frozenset(one.value for one in Dependency)

_BY_STATUS: Mapping[int, type[PenstockError]] = {
    307: Unavailable,  # an overlord that does not lead; a retry finds the leader
    400: InvalidRequest,
    401: InvalidRequest,
    403: InvalidRequest,
    404: NotFound,
    409: Conflict,
    413: InvalidRequest,
    429: Full,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def status_and_code(error: PenstockError) -> tuple[int, str]:
    """Return the HTTP status and the code of an error."""
    for kind, status, code in _TABLE:
        if isinstance(error, kind):
            return status, code
    return 500, "general"


def error_from(status: int, code: object, message: str, dependency: object = None) -> PenstockError:
    """Return the error of an answer.

    Args:
        status: HTTP status.
        code: ``errorCode`` of the body.
        message: Text of the error.
        dependency: The dependency that fails, as named by the body; an unknown name is ignored.
    """
    kind = _BY_CODE.get(str(code)) or _BY_STATUS.get(status, PenstockError)
    if issubclass(kind, Unavailable) and dependency in _DEPENDENCIES:
        return kind(message, dependency=Dependency(dependency))
    return kind(message)


def error_body(error: PenstockError) -> dict[str, object]:
    """Return the JSON body of an error: Druid's ``error``, our code, and the dependency."""
    _, code = status_and_code(error)
    body: dict[str, object] = {"error": str(error), "errorCode": code}
    if isinstance(error, Unavailable) and error.dependency is not Dependency.OTHER:
        body["dependency"] = error.dependency.value
    return body
