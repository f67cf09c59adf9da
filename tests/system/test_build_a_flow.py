"""The flows of the guide to building one, and the mistake that it shows; `test_guides` types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from walking_kit import FLOW_GUIDE, ROOT, first_flow, lines_not_printed

from penstock.services.cli.entry import run
from penstock.services.examples import write_examples

FIRST = first_flow()


@pytest.mark.parametrize("name", ["first.yaml", "examples/flights.yaml"])
def test_the_flows_of_the_guide_are_valid(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_examples(tmp_path / "examples")
    (tmp_path / "first.yaml").write_text(FIRST)
    assert run(["flow", "validate", name]) == 0


def test_a_mistake_is_told_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = FIRST.replace("type: ValidateRecord", "type: ValidateRecords")
    (tmp_path / "first.yaml").write_text(wrong)
    assert run(["flow", "validate", "first.yaml"]) == 2
    told = capsys.readouterr().err.splitlines()[0]
    assert f"    {told}\n" in (ROOT / "docs" / FLOW_GUIDE).read_text()


def test_a_shown_line_differs_from_the_output_only_in_what_varies() -> None:
    output = (
        "5 components are started\n"
        "Validate.invalid → Describe            1     643 B   0\n"
        "4 invalid records: record 7: column 'x' must be int32: 'late'\n"
        "index_penstock_clicks_91ae3aef75f64ab_abcdefgh   ACTIVE\n"
    )
    same = [
        "7 components are started",
        "Validate.invalid → Describe   12   5.2 MB   0",
        "3 invalid records: record 28835: column 'x' must be int32: …",
        "index_penstock_clicks_68fcda3aef75f64_lmfslrvd   ACTIVE",
    ]
    assert lines_not_printed(same, output) == []
    stale = ["5 components are told to run", "3 invalid records: record 7: column 'x' is to be …"]
    assert lines_not_printed(stale, output) == stale
