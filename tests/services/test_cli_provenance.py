"""`penstock flow lineage` and `replay` against answers of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from penstock.services.cli.entry import run
from penstock.services.cli.flow import provenance

EVENTS = {
    "flowfiles": [12],
    "events": [
        {"id": "1-0", "time": 0, "event": "RECEIVE", "component": "c", "flowfile": 12,
         "queue": "q", "relationship": "success", "topic": "clicks", "partition": 0, "offset": 7},
        {"id": "2-0", "time": 1, "event": "DROP", "flowfile": 12, "reason": "removed",
         "children": [13], "child_count": 1},
    ],
    "complete": False,
    "names": {"c": "Read", "q": "Read.success → Log"},
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Mapping[str, object]]]:
    requests: list[tuple[str, str, Mapping[str, object]]] = []

    def answer(method: str, path: str, query: Mapping[str, object]) -> dict[str, object]:
        requests.append((method, path, query))
        return EVENTS if method == "GET" else {"flowfile": 20, "parent": 12, "repeated": False}

    monkeypatch.setattr(provenance, "request_object", answer)
    return requests


@pytest.mark.parametrize(
    ("what", "query"),
    [
        ("12", {"flowfile": "12"}),
        ("clicks/0/7", {"topic": "clicks", "partition": "0", "offset": "7"}),
    ],
)
def test_events_are_listed_with_names(
    asked: list[tuple[str, str, Mapping[str, object]]],
    capsys: pytest.CaptureFixture[str],
    what: str,
    query: dict[str, str],
) -> None:
    assert run(["flow", "lineage", what]) == 0
    shown = capsys.readouterr().out
    assert asked == [("GET", provenance.PROVENANCE, {**query, "depth": 5})]
    for text in ("RECEIVE", "success, into Read.success → Log", "clicks/0/7", "removed", "--depth"):
        assert text in shown
    assert run(["flow", "lineage", what, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == EVENTS


@pytest.mark.parametrize("what", ["", "clicks", "clicks/0", "clicks/x/7", "-", "/0/1"])
def test_a_place_that_is_none_is_refused(
    asked: list[tuple[str, str, Mapping[str, object]]], what: str
) -> None:
    assert run(["flow", "lineage", "--", what]) != 0
    assert asked == []


def test_a_replay_has_a_key_of_its_own(
    asked: list[tuple[str, str, Mapping[str, object]]], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(["flow", "replay", "12", "--yes"]) == 0
    assert "replayed as FlowFile 20" in capsys.readouterr().out
    keys = [query["key"] for _, _, query in asked]
    assert len(set(keys)) == 2


def test_many_replays_go_through_all_steps_of_the_previewed_selection(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[tuple[str, Mapping[str, object]]] = []

    def answer(method: str, path: str, query: Mapping[str, object]) -> dict[str, object]:
        assert path == provenance.REPLAYS
        requests.append((method, {k: v for k, v in query.items() if v is not None}))
        gone = {"flowfile": 4, "outcome": "content", "reason": "its content is gone"}
        if query.get("next") is None:
            return {"outcomes": {"replayed": 2}, "examples": [], "next": "3-1", "until": 9}
        outcomes = {"replayed": 1, "content": 2}
        return {"outcomes": outcomes, "examples": [gone] * 2, "next": None, "until": 9}

    monkeypatch.setattr(provenance, "request_object", answer)
    questions: list[str] = []

    def confirm(question: str, *, yes: bool) -> None:
        assert not yes
        questions.append(question)

    monkeypatch.setattr(provenance, "confirm", confirm)
    command = ["flow", "replay-many", "--component", "End", "--attribute", "k=v=w"]
    assert run(command) == 0
    assert questions == ["Replay 3 FlowFiles? Their effects happen again."]
    wanted = {"component": "End", "attribute": "k", "value": "v=w"}
    assert requests == [
        ("GET", wanted),
        ("GET", {**wanted, "next": "3-1", "until": 9}),
        ("POST", {**wanted, "until": 9}),
        ("POST", {**wanted, "next": "3-1", "until": 9}),
    ]
    shown = capsys.readouterr().out
    for text in ("3 FlowFiles replayed", "2 not replayed", "its content is gone"):
        assert text in shown
    assert run([*command, "--yes", "--json"]) == 0
    assert [method for method, _ in requests[4:]] == ["POST", "POST"]
    assert json.loads(capsys.readouterr().out)["outcomes"] == {"replayed": 3, "content": 2}
    assert run(["flow", "replay-many", "--attribute", "k"]) != 0
