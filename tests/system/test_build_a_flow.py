"""The guide to building a flow, typed in order at a running Penstock, with its kill -9."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import serving
from walking import ROOT, Walk, commands_of

from penstock.services.cli.entry import run
from penstock.services.demo.chaos import processes_of
from penstock.services.demo.server import DemoServer

GUIDE = (ROOT / "docs" / "guides" / "build-a-flow.md").read_text()
[FIRST] = re.findall(r"```yaml\n# first.yaml\n(.*?)```", GUIDE, re.DOTALL)
FIRST = f"# first.yaml\n{FIRST}"
COMMANDS = commands_of("guides/build-a-flow.md")

# What a command's output comes to hold, where that is the point of the command.
EXPECTED = {
    "penstock flow validate": r"flow flights is valid",
    "penstock flow apply first.yaml": r"\+ processor Read[\s\S]*nothing of it runs yet",
    "penstock flow queue list": r"Validate.valid → Enrich +(?:0|12) ",
    "penstock flow queue count 'Validate.valid": r"27004 +1\n24951 +1",
    "penstock flow queue count 'Validate.invalid": r"4 invalid records: record 28835: .*'late'",
    "penstock flow diff": r"type: 'LogAttribute' → 'SparkSQL'",
    "penstock flow apply examples": r"revision 2, 7 added",
    "penstock topic peek flights.rejected": r'"dep_delay":"late"(.*\n){4}',
    "penstock sql": r"United Air Lines Inc. +58665\nJetBlue Airways +54635\nExpressJet .* 54173",
    "penstock flow status Enrich": r"stopped",
    "penstock flow bulletins": r"no bulletins",
}


@pytest.mark.parametrize("name", ["first.yaml", "examples/flights.yaml"])
def test_the_flows_of_the_guide_are_valid(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "first.yaml").write_text(FIRST)
    assert run(["flow", "validate", name]) == 0


def test_a_mistake_is_told_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = FIRST.replace("type: ValidateRecord", "type: ValidateRecords")
    (tmp_path / "first.yaml").write_text(wrong)
    assert run(["flow", "validate", "first.yaml"]) == 2
    assert f"    {capsys.readouterr().err.splitlines()[0]}\n" in GUIDE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DemoServer]:
    variables = {"FLIGHTS_FOLDER": str(tmp_path / "flights-2013")}
    with serving(tmp_path / "data", variables) as made:
        yield made


@pytest.mark.system
@pytest.mark.timeout(400)
def test_the_guide_works_as_it_is_written(server: DemoServer, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "first.yaml").write_text(FIRST)

    def kill() -> None:
        assert server.pid is not None
        [victim] = [one for one in processes_of(server.pid) if one.name == "flow"]
        os.kill(victim.pid, signal.SIGKILL)

    variables = {
        "PENSTOCK_DATA_DIR": str(tmp_path / "data"),
        "FLIGHTS_FOLDER": str(tmp_path / "flights-2013"),
    }
    walk = Walk(tmp_path, variables, EXPECTED, {"kill": kill})
    assert len(COMMANDS) > 15
    for command in COMMANDS:
        walk.type(command)
    assert not list((tmp_path / "data" / "tmp" / "flow").glob("*/*"))
