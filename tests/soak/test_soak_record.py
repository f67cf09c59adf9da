"""`make soak`: where a run begins, and what it adds to the record."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.soak import soak


class Runner:
    """`make soak` with a suite of blocks of 10 cases, in a repository that a test makes up.

    Args:
        record: The record.
        monkeypatch: Replaces what `make soak` asks of git, and its arguments.
    """

    def __init__(self, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.record = record
        self.ran: list[range] = []
        self.sources, self.changed = "tree1", ""
        self.block: Callable[[range], list[str]] = lambda _seeds: []
        self._patch = monkeypatch
        monkeypatch.setattr(soak, "_git", self._git)
        monkeypatch.setitem(soak.SUITES, "fake", ("fake_suite", "fake", 10))
        monkeypatch.setitem(sys.modules, "tests.soak.fake_suite", SimpleNamespace(fake=self._fake))

    def __call__(self, *arguments: str, suite: str = "fake") -> int:
        self.ran.clear()
        self._patch.setattr(sys, "argv", ["soak", suite, "--record", str(self.record), *arguments])
        return soak.main()

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    @contextmanager
    def _fake(self) -> Iterator[soak.Block]:
        def run(seeds: range) -> tuple[list[str], dict[str, int]]:
            self.ran.append(seeds)
            return self.block(seeds), {"cases": len(seeds)}

        yield run

    def _git(self, *arguments: str) -> str:
        if arguments[0] == "status":
            return self.changed
        return self.sources if arguments[-1] == "HEAD:src" else "commit1"


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    return Runner(tmp_path / "record.jsonl", monkeypatch)


def test_a_line_is_added_for_each_block(runner: Runner) -> None:
    assert runner("--total", "25") == 0
    assert runner.ran == [range(10), range(10, 20), range(20, 25)]
    first, _, last = runner.lines()
    assert first.keys() == {
        *("at", "commit", "src", "changed", "suite", "seeds", "of", "seconds", "counts", "failures")
    }
    assert (first["commit"], first["src"], first["changed"]) == ("commit1", "tree1", False)
    assert (last["suite"], last["seeds"]) == ("fake", [20, 25])
    assert (last["counts"], last["failures"]) == ({"cases": 5}, [])


def test_a_run_goes_on_behind_the_last_recorded_block(runner: Runner) -> None:
    runner("--total", "20")
    before = runner.record.read_text()
    assert runner("--total", "20") == 0
    assert runner.ran == []
    runner("--total", "40")
    assert runner.ran == [range(20, 30), range(30, 40)]
    assert runner.record.read_text().startswith(before)
    assert len(runner.lines()) == 4


def test_other_sources_begin_anew_and_changed_ones_count_for_nothing(runner: Runner) -> None:
    runner("--total", "20")
    runner.sources = "tree2"
    runner("--total", "10")
    assert runner.ran == [range(10)]
    runner.sources, runner.changed = "tree3", " M src/penstock/a.py"
    for _ in range(2):
        runner("--total", "10")
        assert runner.ran == [range(10)]
    assert runner.lines()[-1]["changed"]
    runner.sources, runner.changed = "tree1", ""
    runner("--total", "30")
    assert runner.ran == [range(20, 30)]


def test_each_suite_has_seeds_of_its_own(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    runner("--total", "30")
    monkeypatch.setitem(soak.SUITES, "other", soak.SUITES["fake"])
    runner("--total", "10", suite="other")
    assert runner.ran == [range(10)]


def test_failures_are_recorded_and_the_run_goes_on(runner: Runner) -> None:
    runner.block = lambda seeds: [f"seed {seed}" for seed in seeds] * 3 if 10 in seeds else []
    assert runner("--total", "30") == 1
    assert len(runner.ran) == 3
    failures = [line["failures"] for line in runner.lines()]
    assert failures[0] == failures[2] == []
    assert failures[1] == [*(f"seed {seed}" for seed in range(10, 20))] * 2
    assert runner("--total", "40") == 0


def test_a_block_that_is_stopped_is_run_again(runner: Runner) -> None:
    def stop(seeds: range) -> list[str]:
        if seeds.start == 20:
            raise KeyboardInterrupt
        return []

    runner.block = stop
    with pytest.raises(KeyboardInterrupt):
        runner("--total", "40")
    assert len(runner.lines()) == 2
    runner.block = lambda _seeds: []
    runner("--total", "40")
    assert runner.ran == [range(20, 30), range(30, 40)]


def test_a_line_that_a_kill_cut_is_left_out(runner: Runner) -> None:
    runner("--total", "20")
    whole = runner.record.read_bytes()
    runner.record.write_bytes(whole[:-20])
    runner("--total", "20")
    assert runner.ran == [range(10, 20)]
    first, cut, last = runner.record.read_bytes().splitlines()
    assert whole.startswith(first + b"\n" + cut)
    assert json.loads(last)["seeds"] == [10, 20]


def test_no_block_begins_after_the_time(runner: Runner) -> None:
    assert runner("--total", "20", "--seconds", "0") == 0
    assert runner.ran == []
    assert not runner.record.exists()


def test_a_suite_of_some_sources_goes_on_after_others_changed(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has a digest of all trees that the suite names, and asks for their changes."""
    asked: list[tuple[str, ...]] = []
    trees = {"HEAD:src/one": "tree1", "HEAD:src/two": "tree2"}

    def git(*arguments: str) -> str:
        asked.append(arguments)
        return "\n".join(trees[one] for one in arguments if one in trees)

    monkeypatch.setattr(soak, "_git", git)
    monkeypatch.setitem(soak.SOURCES, "fake", ("src/one", "src/two"))
    runner("--total", "10")
    assert ("status", "--porcelain", "--", "src/one", "src/two") in asked
    runner("--total", "20")
    assert runner.ran == [range(10, 20)]
    trees["HEAD:src/two"] = "tree3"
    runner("--total", "20")
    assert runner.ran == [range(10), range(10, 20)]
