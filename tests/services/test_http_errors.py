"""Errors in HTTP answers: the class that a client raises for each."""

from __future__ import annotations

import json

import pytest

from penstock.core import errors
from penstock.core.errors import CorruptData, PenstockError
from penstock.services.http_errors import BodyTooLarge, error_body, error_of_answer, status_and_code

RAISED = {  # where the client's class is not the server's
    BodyTooLarge: errors.InvalidRequest,
    errors.Closed: errors.Unavailable,
    CorruptData: PenstockError,
    errors.Fenced: errors.Unavailable,
    errors.MetadataUnavailable: errors.Unavailable,
    errors.NotReachable: errors.Unavailable,
    errors.StorageUnavailable: errors.Unavailable,
}
KINDS = [
    kind
    for kind in (*vars(errors).values(), BodyTooLarge)
    if isinstance(kind, type) and issubclass(kind, PenstockError)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_client_raises_an_error_with_the_same_remedy(kind: type[PenstockError]) -> None:
    error = kind("f", 0, "torn") if issubclass(kind, CorruptData) else kind("no room")
    status, _ = status_and_code(error)
    raised = error_of_answer(status, json.dumps(error_body(error)).encode(), "GET /x")
    assert (type(raised), str(raised)) == (RAISED.get(kind, kind), str(error))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (307, errors.Unavailable),
        (400, errors.InvalidRequest),
        (401, errors.InvalidRequest),
        (403, errors.InvalidRequest),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (413, errors.InvalidRequest),
        (418, PenstockError),
        (429, errors.Full),
        (500, PenstockError),
        (502, errors.Unavailable),
        (503, errors.Unavailable),
        (504, errors.Unavailable),
    ],
)
def test_an_answer_without_a_code_is_judged_by_its_status(
    status: int, kind: type[PenstockError]
) -> None:
    assert type(error_of_answer(status, b"gone", "GET /x")) is kind
