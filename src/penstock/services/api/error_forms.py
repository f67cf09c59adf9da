"""Forms of errors in HTTP answers: Druid's, and that of the Iceberg catalog below its path.

An error may occur before the handler of a route, such as a credential that is missing, so the path
decides. Source of the catalog's form and types: the OpenAPI document of the Iceberg project.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unauthenticated,
    Unavailable,
)
from penstock.core.http_errors import error_body, plain_body, status_and_code

ICEBERG: Final = "/iceberg/v1"

_TYPES: Final = (
    (Unauthenticated, "NotAuthorizedException"),
    (Forbidden, "ForbiddenException"),
    (Conflict, "CommitFailedException"),
    (InvalidRequest, "BadRequestException"),
    (Unavailable, "ServiceUnavailableException"),
)
_OF_STATUS: Final[Mapping[int, str]] = {
    404: "UnsupportedOperationException",  # a path; a missing table has a type of its own
    405: "UnsupportedOperationException",
    413: "BadRequestException",
}


def answered_error(error: PenstockError, path: str) -> dict[str, object]:
    """Return the JSON body of an error in the form of a path."""
    return iceberg_error(error) if _is_of_catalog(path) else error_body(error)


def answered_text(text: str, code: str, status: int, path: str) -> dict[str, object]:
    """Return the JSON body of an error that has only a text and Penstock's code."""
    if not _is_of_catalog(path):
        return plain_body(text, code)
    return _iceberg_body(text, _OF_STATUS.get(status, "InternalServerError"), status)


def iceberg_error(
    error: PenstockError, not_found: str = "NoSuchTableException"
) -> dict[str, object]:
    """Return the JSON body of an error in the form of the catalog.

    Args:
        error: The error.
        not_found: Its type if something does not exist.
    """
    status = 409 if isinstance(error, Conflict) else status_and_code(error)[0]
    types = ((NotFound, not_found), *_TYPES)
    kind = next((name for type_, name in types if isinstance(error, type_)), "InternalServerError")
    return _iceberg_body(str(error), kind, status)


def iceberg_status(body: Mapping[str, object]) -> int:
    """Return the status of an error in the form of the catalog."""
    error = body["error"]
    assert isinstance(error, Mapping)
    return int(error["code"])


def iceberg_unknown(error: PenstockError) -> dict[str, object]:
    """Return the JSON body of an error after which the outcome of a commit is unknown."""
    return _iceberg_body(str(error), "CommitStateUnknownException", 504)


def _iceberg_body(text: str, kind: str, status: int) -> dict[str, object]:
    return {"error": {"message": text, "type": kind, "code": status}}


def _is_of_catalog(path: str) -> bool:
    return f"{path}/".startswith(f"{ICEBERG}/")
