"""Prioritizers that users write."""

from __future__ import annotations

import itertools
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import UserPrioritizer, check_prioritizer, prioritizer_of
from penstock.flow.user_modules import FlowModules

HERE = __name__
LISTED = FlowModules([HERE])


class Shortest:
    """The least content first."""

    def key(self, flowfile: FlowFile) -> int:
        return flowfile.size


class NoKey:
    """Has no method."""


class Argument:
    """Needs an argument."""

    def __init__(self, what: str) -> None:
        self.what = what


class Exits:
    """Ends the program when it is made."""

    def __init__(self) -> None:
        raise SystemExit("bye")


class Given:
    """Gives what it is told."""

    def __init__(self, values: dict[int, object]) -> None:
        self.values = values

    def key(self, flowfile: FlowFile) -> object:
        value = self.values[flowfile.id]
        if isinstance(value, Exception):
            raise value
        return value


values = st.recursive(
    st.none()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.just([])
    | st.builds(ValueError),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


def test_one_is_found_by_its_path() -> None:
    own = prioritizer_of(f"{HERE}:Shortest", LISTED)
    flowfiles = [FlowFile(n, {}, size) for n, size in enumerate((5, 1, 3))]
    assert [one.size for one in sorted(flowfiles, key=own.key)] == [1, 3, 5]
    assert own.name == f"{HERE}:Shortest"
    assert prioritizer_of("FirstInFirstOutPrioritizer", LISTED).name == "FirstInFirstOutPrioritizer"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing.there:Shortest", "may not name module nothing.there"),
        (f"{HERE}:Absent", "Absent"),
        (f"{HERE}:NoKey", "a method key"),
        (f"{HERE}:Argument", "no arguments"),
        ("a:b:c", "not an import path"),
        ("Fastest", "unknown prioritizer"),
    ],
)
def test_what_is_none_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        prioritizer_of(text, LISTED)


def test_a_prioritizer_that_is_not_listed_is_refused_and_not_imported() -> None:
    for use in (prioritizer_of, check_prioritizer):
        with pytest.raises(InvalidRequest, match="--flow-modules"):
            use(f"{HERE}:Shortest", FlowModules())
    check_prioritizer(f"{HERE}:Shortest", LISTED)
    with pytest.raises(InvalidRequest, match="has no Absent"):
        check_prioritizer(f"{HERE}:Absent", LISTED)


@given(st.lists(values, min_size=1, max_size=6))
def test_any_keys_have_one_order(given_values: list[object]) -> None:
    own = UserPrioritizer("x", Given(dict(enumerate(given_values))))
    flowfiles = [FlowFile(number, {}) for number in range(len(given_values))]
    keys = [own.key(one) for one in flowfiles]
    first = sorted(keys)
    for order in itertools.islice(itertools.permutations(keys), 24):
        assert sorted(order) == first
    assert all(left <= right for left, right in itertools.pairwise(first))


def test_what_raises_comes_last_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    own = UserPrioritizer("mine", Given({1: ValueError("oh"), 2: 9, 3: ValueError("oh")}))
    flowfiles = [FlowFile(number, {}) for number in (1, 2, 3)]
    with caplog.at_level(logging.WARNING):
        assert next(iter(sorted(flowfiles, key=own.key))).id == 2
    assert len([one for one in caplog.messages if "mine" in one]) == 1


def test_one_that_ends_the_program_when_it_is_made_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="bye"):
        prioritizer_of(f"{HERE}:Exits", LISTED)


def test_a_module_whose_names_cannot_be_looked_up_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = "def __getattr__(name):\n    raise RuntimeError('none of it')\n"
    (tmp_path / "names_that_raise.py").write_text(text)
    with pytest.raises(InvalidRequest, match="none of it"):
        prioritizer_of("names_that_raise:Thing", FlowModules([f"{tmp_path}/"]))
