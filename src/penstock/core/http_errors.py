"""Penstock's errors in HTTP answers: one table for servers and clients.

Owns the HTTP status and code of each error class, the body of an answer, and the reverse: the
error that a client raises for an answer. Druid's bodies are `{"error": text}`; Penstock adds
`errorCode`, so that a client raises the class that the server raised. The broker's bodies are
NSQ's, `{"message": code}`, with the description in a header. Pure: clients of each package send
their requests themselves. Answers of foreign servers (inputs, sinks) have rules of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.errors import (
    Closed,
    Conflict,
    CorruptData,
    Dependency,
    Forbidden,
    Full,
    InvalidRequest,
    LockRevoked,
    NotFound,
    PenstockError,
    QuotaExceeded,
    TooLargeForQuota,
    Unauthenticated,
    Unavailable,
)
from penstock.core.printable import from_header

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message

_DETAIL_HEADER: Final = "X-Penstock-Detail"
_ANSWER_TEXT_MAX: Final = 2_000
_PAGE_START_BYTES: Final = 20


class BodyTooLarge(InvalidRequest):
    """The body of a request exceeds the limit of its port or route."""


class _HttpError(NamedTuple):
    """An error class of a server, its answer, and the class that a client raises for it."""

    kind: type[PenstockError]
    status: int
    code: str
    raised: type[PenstockError]


# A server takes the first row whose class fits. For an answer without a code, a client takes the
# first row with its status, but no error about quotas. Druid answers 400 even if a state forbids
# the request ("already suspended").
_TABLE: Final = (
    _HttpError(BodyTooLarge, 413, "invalidInput", InvalidRequest),
    _HttpError(Unauthenticated, 401, "unauthorized", Unauthenticated),
    _HttpError(Forbidden, 403, "forbidden", Forbidden),
    _HttpError(TooLargeForQuota, 400, "tooLargeForQuota", TooLargeForQuota),
    _HttpError(InvalidRequest, 400, "invalidInput", InvalidRequest),
    _HttpError(Conflict, 400, "conflict", Conflict),
    _HttpError(LockRevoked, 400, "lockRevoked", LockRevoked),
    _HttpError(NotFound, 404, "notFound", NotFound),
    _HttpError(QuotaExceeded, 429, "quotaExceeded", QuotaExceeded),
    _HttpError(Full, 429, "queueFull", Full),
    _HttpError(Unavailable, 503, "unavailable", Unavailable),
    # A component of the server is closed, not one of the caller.
    _HttpError(Closed, 503, "closed", Unavailable),
    # An operator must repair the server's data; to the caller it is an error without a remedy.
    _HttpError(CorruptData, 500, "corruptData", PenstockError),
    _HttpError(PenstockError, 500, "general", PenstockError),
)

# Statuses that no error class has: of proxies and of NSQ. All further ones from 400 to 499, such as
# 405 and 431, are `InvalidRequest`.
_OTHER_STATUSES: Final[Mapping[int, type[PenstockError]]] = {
    307: Unavailable,  # an overlord that does not lead; a retry finds the leader
    408: Unavailable,
    409: Conflict,
    502: Unavailable,
    504: Unavailable,
}

_BY_CODE: Final[Mapping[str, type[PenstockError]]] = {row.code: row.raised for row in _TABLE}
_BY_STATUS: Final[Mapping[int, type[PenstockError]]] = {
    **{row.status: row.raised for row in reversed(_TABLE)},
    400: InvalidRequest,
    429: Full,
    **_OTHER_STATUSES,
}
_DEPENDENCIES: Final = frozenset(one.value for one in Dependency)


def status_and_code(error: PenstockError) -> tuple[int, str]:
    """Return the HTTP status and the code of an error."""
    row = next(row for row in _TABLE if isinstance(error, row.kind))
    return row.status, row.code


def retry_headers(error: PenstockError) -> dict[str, str]:
    """Return the header that says when to try again, if that is known."""
    if isinstance(error, QuotaExceeded):
        return {"Retry-After": str(error.retry_after_s)}
    return {}


def error_from(
    status: int,
    code: object,
    message: str,
    dependency: object = None,
    *,
    server: Dependency | None = None,
) -> PenstockError:
    """Return the error of an answer.

    Args:
        status: HTTP status.
        code: ``errorCode`` of the body.
        message: Text of the error.
        dependency: The dependency that fails, as named by the body; an unknown name is ignored.
        server: The server itself, if its caller waits for it as for a dependency: without a code,
            all its failures are then temporary, including those with status 500.
    """
    kind = _BY_CODE.get(str(code))
    if kind is None:
        is_failure = server is not None and status >= 500
        kind = Unavailable if is_failure else _kind_of_status(status)
    if issubclass(kind, Unavailable):
        named = server
        if isinstance(dependency, str) and dependency in _DEPENDENCIES:
            named = Dependency(dependency)
        return kind(message, dependency=named)
    return kind(message)


def _kind_of_status(status: int) -> type[PenstockError]:
    refused = InvalidRequest if 400 <= status < 500 else PenstockError
    return _BY_STATUS.get(status, refused)


class NotServed(NotFound):
    """The server has no such route: another kind of server listens at the address."""


@dataclass(frozen=True, slots=True)
class ClientRemedies:
    """Remedies in a client's errors, in the terms of its user.

    Attributes:
        token: How to give the token.
        address: How to name the server.
    """

    token: str
    address: str


def error_body(error: PenstockError) -> dict[str, object]:
    """Return the JSON body of an error: Druid's fields, our code, and the dependency."""
    _, code = status_and_code(error)
    body = plain_body(str(error), code)
    if isinstance(error, Unavailable) and error.dependency is not Dependency.OTHER:
        body["dependency"] = error.dependency.value
    return body


def plain_body(text: str, code: str) -> dict[str, object]:
    """Return the JSON body of an error. Druid's clients read the text in either of two fields."""
    return {"error": text, "errorCode": code, "errorMessage": text}


def detail_of(headers: Message[str, str]) -> str:
    """Return the broker's description of an error, which comes with its code, if any."""
    return from_header(headers.get(_DETAIL_HEADER, ""))


def is_web_page(content: bytes) -> bool:
    """Return whether an answer is HTML, which Penstock never sends."""
    return content.lstrip()[:_PAGE_START_BYTES].lower().startswith((b"<!doctype html", b"<html"))


def not_penstock(remedies: ClientRemedies) -> str:
    """Return the reason and the remedy for an answer that Penstock never sends."""
    return f"another program, or a proxy, answers at this address: {remedies.address}"


def error_of_answer(
    status: int,
    content: bytes,
    request: str,
    detail: str = "",
    *,
    remedies: ClientRemedies,
    server: Dependency | None = None,
) -> PenstockError:
    """Return the error of an answer.

    Args:
        status: The answer's status.
        content: Its body.
        request: Name of the request, for the text of 401 and 404, and of answers without a
            description.
        detail: The broker's description in a header, because its bodies are NSQ's codes.
        remedies: The client's remedies.
        server: As in `error_from`.
    """
    text = content.decode(errors="replace").strip()
    code: object = None
    dependency: object = None
    nsq_code: object = None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):  # the latter for JSON that nests too deeply
        raw = None
    if isinstance(raw, dict):
        code, dependency = raw.get("errorCode"), raw.get("dependency")
        described = raw.get("errorMessage") or raw.get("error")
        nsq_code = None if described else raw.get("message")
        text = str(described or nsq_code or text)
    if status == 401:
        # The server knows what it refused, and the client how its user gives a credential.
        reason = f"{request}: the server requires a token, and it is missing or wrong"
        text = f"{text if code == 'unauthorized' else reason}: {remedies.token}"
    elif status == 404 and (text == "NOT_FOUND" or " is not served here" in text):
        return NotServed(f"{request} is not served there: {remedies.address}")
    elif is_web_page(content):
        text = f"{request} was answered {status} with a web page: {not_penstock(remedies)}"
        if status == 404:
            return NotServed(text)
    elif detail:
        # All 503 errors have the same code; the text describes them.
        text = detail if text == "EXITING" else f"{text}: {detail}"
    elif nsq_code or not text:
        text = f"{request} was answered {status} {text}".rstrip()
    elif not isinstance(raw, dict):
        text = f"{request} was answered {status}: {text}"
    return error_from(status, code, text[:_ANSWER_TEXT_MAX], dependency, server=server)
