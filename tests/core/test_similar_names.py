"""Hints for wrong names: the most similar one, found by few comparisons."""

from __future__ import annotations

import difflib
from unittest.mock import Mock

import pytest

from penstock.core.similar_names import most_similar, nearest


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("salse", ["orders", "sales"], "sales"),
        ("SALES", ["orders", "sales"], "sales"),
        ("berlin", ["Europe/Berlin", "Europe/Paris"], "Europe/Berlin"),
        ("x", ["orders", "sales"], None),
        ("sales", [], None),
    ],
)
def test_the_most_similar_name(name: str, known: list[str], near: str | None) -> None:
    assert most_similar(name, known) == near
    others = [f"{number:x}_unlike" for number in range(300)]
    assert most_similar(name, [*others, *known]) == near
    assert nearest(name, known) == ("" if near is None else f"; did you mean {near!r}?")


def test_a_hint_compares_few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"events_of_the_production_line_in_hall_{number:05d}" for number in range(500)]
    compare = Mock(wraps=difflib.get_close_matches)
    monkeypatch.setattr("penstock.core.similar_names.difflib.get_close_matches", compare)
    assert most_similar("events_of_teh_production_line_in_hall_00321", names) == names[321]
    [(_, compared)] = [call.args for call in compare.call_args_list]
    assert len(compared) == 20
