"""Errors in HTTP answers: the class that a client raises for each."""

from __future__ import annotations

import json

import pytest

from penstock.core import errors
from penstock.core.errors import CorruptData, Dependency, PenstockError
from penstock.core.http_errors import (
    BodyTooLarge,
    ClientRemedies,
    error_body,
    error_of_answer,
    status_and_code,
)

RAISED = {  # where the client's class is not the server's
    BodyTooLarge: errors.InvalidRequest,
    errors.Closed: errors.Unavailable,
    CorruptData: PenstockError,
    errors.Fenced: errors.Unavailable,
    errors.MetadataUnavailable: errors.Unavailable,
    errors.NotReachable: errors.Unavailable,
    errors.StorageUnavailable: errors.Unavailable,
}
REMEDIES = ClientRemedies(token="set the option token", address="set url")
KINDS = [
    kind
    for kind in (*vars(errors).values(), BodyTooLarge)
    if isinstance(kind, type) and issubclass(kind, PenstockError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_client_raises_an_error_with_the_same_remedy(kind: type[PenstockError]) -> None:
    error = kind("f", 0, "torn") if issubclass(kind, CorruptData) else kind("no room")
    status, _ = status_and_code(error)
    body = json.dumps(error_body(error)).encode()
    raised = error_of_answer(status, body, "GET /x", remedies=REMEDIES)
    remedy = f": {REMEDIES.token}" if kind is errors.Unauthenticated else ""
    assert (type(raised), str(raised)) == (RAISED.get(kind, kind), f"{error}{remedy}")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (307, errors.Unavailable),
        (400, errors.InvalidRequest),
        (401, errors.Unauthenticated),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (405, errors.InvalidRequest),
        (408, errors.Unavailable),
        (409, errors.Conflict),
        (413, errors.InvalidRequest),
        (418, errors.InvalidRequest),
        (429, errors.Full),
        (431, errors.InvalidRequest),
        (500, PenstockError),
        (502, errors.Unavailable),
        (503, errors.Unavailable),
        (504, errors.Unavailable),
    ],
)
def test_an_answer_without_a_code_is_judged_by_its_status(
    status: int, kind: type[PenstockError]
) -> None:
    assert type(error_of_answer(status, b"gone", "GET /x", remedies=REMEDIES)) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequest),
        (404, errors.NotFound),
        (408, errors.Unavailable),
        (409, errors.Conflict),
        (429, errors.Full),
        (500, errors.Unavailable),
        (503, errors.Unavailable),
        (507, errors.Unavailable),
    ],
)
def test_all_failures_of_a_dependency_are_temporary_and_name_it(
    status: int, kind: type[PenstockError]
) -> None:
    body = b'{"message": "INTERNAL_ERROR"}'
    error = error_of_answer(status, body, "GET /x", remedies=REMEDIES, server=Dependency.BROKER)
    assert type(error) is kind
    if isinstance(error, errors.Unavailable):
        assert error.dependency is Dependency.BROKER
    # A code states more than the status: the caller's answer is not repeated.
    damaged = error_body(CorruptData("f", 0, "torn"))
    answer = json.dumps(damaged).encode()
    error = error_of_answer(500, answer, "GET /x", remedies=REMEDIES, server=Dependency.BROKER)
    assert type(error) is PenstockError


@pytest.mark.parametrize(
    ("status", "body", "detail", "text"),
    [
        (400, b'{"message": "BODY_TOO_BIG"}', "1 to 5 bytes", "BODY_TOO_BIG: 1 to 5 bytes"),
        (503, b'{"message": "EXITING"}', "the disk is full", "the disk is full"),
        (503, b'{"message": "EXITING"}', "", "GET /x was answered 503 EXITING"),
        (502, b"", "", "GET /x was answered 502"),
        (502, b"Bad Gateway", "", "GET /x was answered 502: Bad Gateway"),
        (503, b"null", "", "GET /x was answered 503: null"),
        (503, b"[]", "", "GET /x was answered 503: []"),
        (404, b"<!DOCTYPE HTML>\n<p>404</p>", "", "GET /x was answered 404 with a web page: anoth"),
        (501, b"\n<html><p>501</p>", "", "answers at this address: set url"),
        (401, b'{"message": "UNAUTHORIZED"}', "send it", "missing or wrong: set the option token"),
        (404, b'{"message": "NOT_FOUND"}', "no /x", "GET /x is not served there: set url"),
    ],
)
def test_the_text_of_an_answer_has_the_remedy_in_the_terms_of_the_client(
    status: int, body: bytes, detail: str, text: str
) -> None:
    error = error_of_answer(status, body, "GET /x", detail, remedies=REMEDIES)
    assert text in str(error)


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":"x","errorCode":"unavailable","dependency":["a"]}',
        b'{"error":"x","errorCode":"unavailable","dependency":{}}',
        b'{"error":"x","errorCode":["unavailable"],"dependency":1}',
        b'{"a":' * 100_000,
        b"[" * 100_000,
        b'{"error":' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)
def test_an_answer_of_another_kind_of_server_is_an_error_of_its_status(body: bytes) -> None:
    error = error_of_answer(503, body, "GET /x", remedies=REMEDIES)
    assert isinstance(error, errors.Unavailable)
    assert error.dependency is Dependency.OTHER


def test_a_web_page_is_not_printed() -> None:
    for status in (301, 404, 501, 502):
        error = error_of_answer(
            status, b"<html>\n<p>page</p></html>", "GET http://h:8888/x", remedies=REMEDIES
        )
        assert "http://h:8888/x" in str(error)
        assert REMEDIES.address in str(error)
        assert "<" not in str(error)
        assert "\n" not in str(error)
