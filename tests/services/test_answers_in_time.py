"""Answers of a mailbox, as threads that serve HTTP wait for them."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from penstock.core.errors import Unavailable
from penstock.services.api.futures import result_of


def test_a_mailbox_that_ends_first_does_not_answer():
    answer: Future[int] = Future()
    answer.cancel()
    with pytest.raises(Unavailable, match="ended before"):
        result_of(answer)


def test_an_answer_is_returned():
    answer: Future[int] = Future()
    answer.set_result(7)
    assert result_of(answer) == 7
