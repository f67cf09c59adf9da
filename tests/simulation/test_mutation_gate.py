"""The mutation gate: which seeds a fault needs, what a child process reports, and the record."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.mutation import __main__ as gate
from tests.simulation.mutation.catalogue import ROOT, Fault, StaleFault, load
from tests.simulation.mutation.overlay import sources_with
from tests.simulation.mutation.seed_runner import ExecutedLines
from tests.simulation.mutation.trials import (
    Reach,
    Record,
    SeedResult,
    Trees,
    Trial,
    UnsoundProduct,
    carry_on,
    read_result,
)

TREES = Trees("c0ffee", "src-tree", "simulation-tree", changed=False)
BACKOFF = Fault(
    id="backoff-without-limit",
    part="core",
    file="core/backoff.py",
    thought="Delays may grow.",
    breaks="Delays between attempts have a limit.",
    promise="src/penstock/core/backoff.py",
    old="",
    new="",
)


def fault_in(old: str, new: str) -> Fault:
    """Return a fault in the module of delays."""
    return replace(BACKOFF, old=old, new=new)


def first_return() -> str:
    """Return the first line of that module that returns something."""
    lines = BACKOFF.source().splitlines(keepends=True)
    return next(line for line in lines if line.lstrip().startswith("return"))


# A fault and its statements


def test_a_fault_whose_text_is_gone_or_occurs_twice_is_stale() -> None:
    with pytest.raises(StaleFault, match="occurs 0 times"):
        fault_in("no such text", "").applied()
    with pytest.raises(StaleFault, match=r"occurs \d+ times"):
        fault_in("return", "").applied()


def test_a_fault_in_a_function_has_the_lines_of_its_statement() -> None:
    line = first_return()
    number = BACKOFF.source().splitlines(keepends=True).index(line) + 1
    found = fault_in(line, line.replace("return", "return 1 +")).lines()
    assert found is not None
    assert number in found
    assert len(found) <= 5


def test_a_fault_outside_of_functions_runs_at_import() -> None:
    line = '"""'
    source = BACKOFF.source()
    module_text = source[: source.index("\n") + 1]
    assert fault_in(module_text, line + module_text).lines() is None


def test_the_copy_has_the_fault_and_the_real_module_has_not() -> None:
    line = first_return()
    fault = fault_in(line, line.replace("return", "return 7 #"))
    with sources_with(fault) as folder:
        path = subprocess.run(
            [sys.executable, "-c", "import penstock.core.backoff as one; print(one.__file__)"],
            env={"PYTHONPATH": str(folder)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        assert Path(path) == folder / "penstock/core/backoff.py"
        assert "return 7 #" in Path(path).read_text(encoding="utf-8")
        assert (folder / "penstock/storage").resolve() == ROOT / "src/penstock/storage"
    assert "return 7 #" not in fault.source()


def test_executed_lines_are_recorded_once_and_only_of_some_modules() -> None:
    lines = ExecutedLines({__file__})
    lines.start()
    try:
        first_return()
        first_return()
    finally:
        sys.settrace(None)
        __import__("threading").settrace(None)
    found = lines.take()
    assert list(found) == [__file__]
    assert len(found[__file__]) == len(set(found[__file__]))


# Results of the child process


def test_a_violation_is_noticed_by_its_seed() -> None:
    output = '{"seed": 3, "violation": ""}\n{"seed": 5, "violation": "rows twice"}\n'
    assert read_result([3, 5, 8], output, 0) == SeedResult(2, 5, "rows twice", ({}, {}))


def test_a_process_that_ends_early_notices_in_the_next_seed() -> None:
    result = read_result([3, 5], '{"seed": 3, "violation": ""}\n{"seed": 5, "vio', -24)
    assert (result.noticed, result.how) == (5, "the process ended with code -24")


def test_seeds_that_all_pass_notice_nothing() -> None:
    assert read_result([3], '{"seed": 3, "violation": ""}\n', 0).noticed is None


# Reach


@pytest.fixture
def seeds_pass(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], bool]]:
    """Let seeds of the unchanged product pass at once; return the seeds that were run."""
    run: list[tuple[list[int], bool]] = []

    def passing(seeds: range, fault: Fault | None, *, records: bool = False) -> SeedResult:
        run.append((list(seeds), records))
        number = BACKOFF.source().splitlines(keepends=True).index(first_return()) + 1
        lines = [{BACKOFF.file: [number]} if seed % 2 else {BACKOFF.file: [1]} for seed in seeds]
        return SeedResult(len(seeds), lines=tuple(lines) if records else ())

    monkeypatch.setattr("tests.simulation.mutation.trials.run_seeds", passing)
    return run


def test_only_seeds_that_execute_the_statement_are_tried(
    tmp_path: Path, seeds_pass: list[tuple[list[int], bool]]
) -> None:
    reach = Reach(tmp_path / "reach.json", TREES)
    reach.require(25)
    run = [(seed, records) for seeds, records in seeds_pass for seed in seeds]
    assert run == [(seed, seed < 20) for seed in range(25)]
    line = first_return()
    fault = fault_in(line, line.replace("return", "return 1 +"))
    # Of later seeds it is not known.
    assert reach.seeds_of(fault, range(16, 23)) == [17, 19, 20, 21, 22]


def test_what_was_reached_is_kept_for_the_same_trees(
    tmp_path: Path, seeds_pass: list[tuple[list[int], bool]]
) -> None:
    Reach(tmp_path / "reach.json", TREES).require(5)
    seeds_pass.clear()
    Reach(tmp_path / "reach.json", TREES).require(5)
    assert seeds_pass == []
    Reach(tmp_path / "reach.json", replace(TREES, src="another")).require(5)
    assert seeds_pass == [(list(range(5)), True)]


def test_a_product_that_fails_without_a_fault_stops_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.simulation.mutation.trials.run_seeds",
        lambda *_args, **_given: SeedResult(1, 0, "a row is missing"),
    )
    with pytest.raises(UnsoundProduct, match="seed 0 fails without a fault: a row is missing"):
        Reach(tmp_path / "reach.json", TREES).require(3)


# The record


def test_a_trial_is_carried_on_and_not_repeated(
    tmp_path: Path, seeds_pass: list[tuple[list[int], bool]]
) -> None:
    line = first_return()
    fault = fault_in(line, line.replace("return", "return 1 +"))
    record, reach = Record(tmp_path / "record.jsonl", TREES), Reach(tmp_path / "reach", TREES)
    reach.require(4)
    carry_on(Trial(fault), 4, reach, record)
    again = record.trials([fault])[fault.id]
    assert (again.seeds, again.reached, again.noticed) == (4, 2, None)
    assert again.is_enough(4)
    seeds_pass.clear()
    carry_on(again, 30, reach, record)
    assert seeds_pass == [(list(range(4, 30)), False)]
    assert record.trials([fault])[fault.id].reached == 28


def test_trials_of_other_sources_or_of_an_edited_fault_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    fault = fault_in("a", "b")
    Record(path, TREES).add(Trial(fault, 20, 20, 3, "rows twice"), 1.0)
    assert Record(path, TREES).trials([fault])[fault.id].within(20)
    others = Record(path, replace(TREES, simulation="another"))
    assert others.trials([fault])[fault.id].seeds == 0
    assert Record(path, TREES).trials([replace(fault, new="c")])[fault.id].seeds == 0
    changed = Record(path, replace(TREES, changed=True))
    assert changed.trials([fault])[fault.id].seeds == 0


def test_a_line_that_a_kill_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    fault = fault_in("a", "b")
    Record(path, TREES).add(Trial(fault, 20, 20), 1.0)
    path.write_text(path.read_text(encoding="utf-8") + '{"fault": "backoff', encoding="utf-8")
    assert Record(path, TREES).trials([fault])[fault.id].seeds == 20


# The choice of faults, and the summary


def test_a_sample_has_the_same_faults_each_time_and_none_that_is_equivalent() -> None:
    faults = load()
    equivalent = replace(faults[0], verdict="equivalent", reason="no caller passes it")
    found = gate.chosen([equivalent, *faults[1:]], [], [], 30)
    assert found == faults[1:31]
    assert len({fault.part for fault in found}) > 5
    assert {fault.part for fault in gate.chosen(faults, [], ["lockbox"], None)} == {"lockbox"}
    with pytest.raises(SystemExit, match="no fault 'nothing'"):
        gate.chosen(faults, ["nothing"], [], None)


def test_faults_that_no_seed_executes_are_listed(
    tmp_path: Path, seeds_pass: list[tuple[list[int], bool]]
) -> None:
    reach = Reach(tmp_path / "reach.json", TREES)
    reach.require(3)
    line = first_return()
    run = fault_in(line, line.replace("return", "return 1 +"))
    idle = replace(run, id="idle", old="self._failures += 1", new="self._failures += 2")
    lines = gate.not_executed([run, idle], reach, 3).splitlines()
    assert lines[1].split() == ["core", "2", "1"]
    assert lines[2].split() == ["all", "2", "1"]
    assert lines[3:] == [f"core idle: {BACKOFF.breaks}"]


def test_the_summary_counts_by_part_and_names_survivors() -> None:
    one = replace(fault_in("a", "b"), part="lockbox")
    hole = replace(one, id="hole", part="task", verdict="hole", reason="no reader is simulated")
    trials = [Trial(one, 200, 9, 3, "rows twice"), Trial(hole, 200, 9), Trial(one, 200, 4, 99, "x")]
    lines = gate.summary(trials, 200).splitlines()
    assert lines[1].split() == ["lockbox", "2", "0", "1", "2", "100", "%"]
    assert lines[2].split() == ["task", "1", "0", "0", "0", "0", "%"]
    assert lines[3].split() == ["all", "3", "0", "1", "2", "67", "%"]
    assert lines[4].endswith("ran in 9 of 200 seeds; hole: no reader is simulated")


def test_the_summary_names_a_noticed_fault_whose_verdict_says_otherwise() -> None:
    fault = replace(fault_in("a", "b"), verdict="hole", reason="no reader is simulated")
    last = gate.summary([Trial(fault, 200, 9, 3, "rows twice")], 200).splitlines()[-1]
    assert last == f"{fault.id}: seed 3, rows twice; its verdict is no longer true: hole"


def test_the_gate_fails_for_a_survivor_without_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = load()[0]
    path = tmp_path / "record.jsonl"
    monkeypatch.setattr(Trees, "now", classmethod(lambda _cls: TREES))
    Record(path, TREES).add(Trial(fault, 20, 20), 1.0)
    given = ["--only", fault.id, "--record", str(path)]
    assert gate.main(given) == 1
    assert "SURVIVED" in capsys.readouterr().out
    Record(path, TREES).add(Trial(fault, 20, 20, 7, "rows twice"), 1.0)
    assert gate.main(given) == 0
    assert gate.main([*given, "--least", "100"]) == 0
    assert [json.loads(line)["fault"] for line in path.read_text().splitlines()] == [fault.id] * 2
