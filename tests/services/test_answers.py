"""Reading answers: whatever another release sends, what is not there counts as nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.services.json_values import objects, part, whole

ANSWER = {"payload": {"tasks": [{"id": "a"}, None, "b", {"id": "c"}], "lag": 7, "state": "RUNNING"}}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)


def test_what_is_there_is_found():
    assert part(ANSWER, "payload", "lag") == whole(ANSWER, "payload", "lag") == 7
    assert part(ANSWER) is ANSWER
    found = [{"id": "a"}, {"id": "c"}]
    assert objects(ANSWER, "payload", "tasks") == objects(ANSWER["payload"]["tasks"]) == found


def test_what_is_not_there_counts_as_nothing():
    assert part(ANSWER, "payload", "tasks", "id") is part(None, "payload") is None
    assert objects(ANSWER, "payload", "lag") == objects("no answer") == []
    assert whole(ANSWER, "payload", "state") == whole(ANSWER, "lag") == 0


@given(values, st.lists(st.sampled_from("abc"), max_size=4))
def test_nothing_that_an_answer_may_be_is_a_failure(answer, names):
    there = part(answer, *names)
    assert whole(answer, *names) == (there if isinstance(there, int) else 0)
    assert all(one in there for one in objects(answer, *names))
