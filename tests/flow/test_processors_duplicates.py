"""DetectDuplicate, and the window of keys it remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData, Unavailable
from penstock.flow.processor import InvalidConfiguration
from penstock.flow.processor_state import MAX_STATE_BYTES, encode_state
from penstock.flow.processors.routing.detect_duplicate import KEYS_MAX, DetectDuplicate, SeenKeys
from penstock.testing.flow import ProcessorRunner


def test_the_second_with_the_same_content_is_a_duplicate_also_after_a_restart() -> None:
    with ProcessorRunner(DetectDuplicate) as runner:
        for content in (b"a", b"b", b"a", b""):
            runner.enqueue(content)
        runner.run()
        assert [sent.content for sent in runner.sent("non-duplicate")] == [b"a", b"b", b""]
        assert [sent.content for sent in runner.sent("duplicate")] == [b"a"]
        runner.clear()
        runner.restart()
        for content in (b"a", b"c", b""):
            runner.enqueue(content)
        runner.run()
        assert [sent.content for sent in runner.sent("non-duplicate")] == [b"c"]
        assert [sent.content for sent in runner.sent("duplicate")] == [b"a", b""]


def test_a_key_of_attributes_decides_and_an_empty_one_fails() -> None:
    with ProcessorRunner(DetectDuplicate, {"key": "${order}${part}"}) as runner:
        runner.enqueue(b"1", order="a", part="1")
        runner.enqueue(b"2", order="a", part="1")
        runner.enqueue(b"1", order="a", part="2")
        runner.enqueue(b"1")
        runner.run()
        assert runner.counts() == {"non-duplicate": 2, "duplicate": 1, "failure": 1}
        assert "is empty" in runner.sent("failure")[0].attributes["error.reason"]


def test_what_was_rolled_back_is_no_duplicate_of_itself() -> None:
    with ProcessorRunner(DetectDuplicate) as runner:
        runner.enqueue(b"a")
        runner.run()
        runner.clear()
        runner.enqueue(b"b")

        def full_disk() -> None:
            raise Unavailable("no space left; free some")

        runner.before_commit(full_disk)
        with pytest.raises(Unavailable):
            runner.run()
        runner.before_commit(lambda: None)
        runner.advance(60_000)
        runner.enqueue(b"a")
        runner.run()
        assert [sent.content for sent in runner.sent("non-duplicate")] == [b"b"]
        assert [sent.content for sent in runner.sent("duplicate")] == [b"a"]


def test_the_oldest_key_is_forgotten_first() -> None:
    with ProcessorRunner(DetectDuplicate, {"remember": 2}) as runner:
        for content in (b"a", b"b", b"c", b"b", b"a"):
            runner.enqueue(content)
        runner.run()
        assert [sent.content for sent in runner.sent("duplicate")] == [b"b"]


def test_keys_are_forgotten_after_a_time() -> None:
    with ProcessorRunner(DetectDuplicate, {"forget_after": "1 min"}) as runner:
        for wait_ms in (0, 59_999, 1, 0):
            runner.advance(wait_ms)
            runner.enqueue(b"a")
            runner.run()
        assert runner.counts() == {"non-duplicate": 2, "duplicate": 2}


def test_a_full_window_fits_into_the_state() -> None:
    seen = SeenKeys(KEYS_MAX, None)
    for number in range(KEYS_MAX + 1):
        seen.add(number.to_bytes(16, "big"), 1_800_000_000_000)
    assert len(seen) == KEYS_MAX
    assert len(encode_state({"seen": seen.encode()})) < MAX_STATE_BYTES
    with pytest.raises(InvalidConfiguration, match="30,000"):
        DetectDuplicate(remember=KEYS_MAX + 1)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50))),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 100)),
)
def test_the_window_is_that_of_a_naive_model_over_restarts(
    steps: list[tuple[int, int]], most: int, forget_after_ms: int | None
) -> None:
    seen, model, now_ms = SeenKeys(most, forget_after_ms), list[tuple[bytes, int]](), 0
    for number, wait_ms in steps:
        now_ms += wait_ms
        key = number.to_bytes(16, "big")
        if forget_after_ms is not None:
            model = [entry for entry in model if entry[1] > now_ms - forget_after_ms]
        is_new = key not in [known for known, _ in model]
        model = [*model, (key, now_ms)][-most:] if is_new else model
        assert seen.add(key, now_ms) == is_new
        seen = SeenKeys(most, forget_after_ms, seen.encode())
        assert len(seen) == len(model)


def test_a_lower_bound_holds_for_what_was_remembered_before() -> None:
    seen = SeenKeys(10, None)
    for number in range(10):
        seen.add(number.to_bytes(16, "big"), 1)
    fewer = SeenKeys(3, None, seen.encode())
    assert fewer.add(b"x" * 16, 2)
    assert len(fewer) == 3
    assert not fewer.add((9).to_bytes(16, "big"), 2)


@pytest.mark.parametrize("text", ["?", "AAAA", "A"])
def test_a_damaged_window_is_an_error(text: str) -> None:
    with pytest.raises(CorruptData):
        SeenKeys(10, None, text)
