"""The cases of the fault suites: every pair is raised, and a range that is too short fails."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import FaultCases, FaultPlan
from tests.soak.faults_suite import PARTS, TESTS


class Undo:
    """A part that makes three calls, and two more when one of them raises."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.calls: list[str] = []
        self.port = self.faults.port(self)

    def reach(self, name: str) -> None:
        self.calls.append(name)

    def operate(self) -> None:
        try:
            for name in ("one", "two", "three"):
                self.port.reach(name)
        except BaseException:
            for name in ("undo", "report"):
                self.port.reach(name)
            raise


def check(_name: str, plan: FaultPlan) -> Faults:
    part = Undo()
    with plan.armed(part.faults):
        part.operate()
    return part.faults


def test_every_second_fault_is_raised_at_every_call_that_follows_the_first() -> None:
    cases = FaultCases(["operate"], check, calls=9)
    failures, counts = cases.run(range(cases.total))
    assert not failures
    kinds = len(FAULTS)
    assert counts.firsts == 3 * kinds * 2
    assert counts.pairs == counts.firsts * 2 * kinds


def test_a_range_that_ends_before_the_calls_do_fails_the_run() -> None:
    cases = FaultCases(["operate"], check, calls=3)
    failures, _ = cases.run(range(cases.total))
    assert failures
    assert all("raise the limit" in one for one in failures)


def test_a_memory_error_is_raised_at_each_call_of_a_function() -> None:
    cases = FaultCases(["operate"], check, calls=9, inside=[__name__], inside_calls=30)
    _, counts = cases.run(range(cases.total))
    assert counts.inside == 1 + 3  # `operate`, and `reach` three times


def test_a_sample_raises_so_many_pairs() -> None:
    checked: list[FaultPlan] = []

    def note(name: str, plan: FaultPlan) -> Faults:
        checked.append(plan)
        return check(name, plan)

    assert not FaultCases(["operate"], note, calls=9).sample(5)
    assert sum(one.then is not None for one in checked) == 5


def test_a_failure_names_its_case() -> None:
    def fail(_name: str, plan: FaultPlan) -> Faults:
        raise AssertionError(f"no invariant holds after {plan.at}")

    failures, _ = FaultCases(["operate"], fail, calls=2).run([0])
    assert "operate: OSError before call 0" in failures[0]
    assert "no invariant holds" in failures[0]


def test_a_name_of_a_module_that_does_not_exist_is_refused() -> None:
    faults = Faults()
    with (
        pytest.raises(LookupError, match="writing"),
        faults.armed_inside(["penstock.storage.content.writing"], MemoryError, 0),
    ):
        pass


def test_files_that_nobody_closed_are_known() -> None:
    faults = Faults()
    port = faults.port(Path(__file__), results=["open"])
    first = port.open()
    port.open().close()
    assert faults.unclosed == {first}
    first.close()
    assert not faults.unclosed


@pytest.mark.parametrize("part", PARTS)
def test_the_module_of_each_part_exists(part: str) -> None:
    module, _, function = PARTS[part].partition(":")
    path = TESTS / module.replace(".", "/")
    text = path.with_suffix(".py").read_text(encoding="utf-8")
    assert re.search(rf"^(def )?(.*, )?{function or 'PAIRS'}( = |\(|, .* = )", text, re.MULTILINE)


def test_a_run_names_files_whose_samples_take_too_long(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert conftest is not None
    proofs, lines = conftest.Proofs(), list[str]()
    for nodeid, duration in (
        ("tests/flow/test_queue_faults.py::test_one", 40.0),
        ("tests/flow/test_queue_faults.py::test_two[a]", 21.5),
        ("tests/flow/test_session_faults.py::test_one", 59.0),
        ("tests/flow/test_queue_model.py::test_one", 90.0),
    ):
        proofs.pytest_runtest_logreport(SimpleNamespace(nodeid=nodeid, duration=duration))
    proofs.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert [line.partition(":")[0] for line in lines] == [
        "tests/flow/test_queue_faults.py took 62 s"
    ]
