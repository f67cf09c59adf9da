"""What users type and read is in the documentation: options, commands, exit codes, metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import options_page
from penstock.indexing.ports import TaskState
from penstock.services.cli import exit_codes
from penstock.services.cli.entry import app
from penstock.services.options.table import option_entries

ROOT = Path(__file__).parent.parent.parent
CLI = (ROOT / "docs" / "cli.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.parametrize("entry", option_entries(), ids=lambda entry: entry.key)
def test_options_with_their_defaults(entry) -> None:
    name = f"{entry.key}` (not on the command line)" if entry.is_secret else f"{entry.flag}`"
    row = next(line for line in CONFIGURATION.splitlines() if line.startswith(f"| `{name}"))
    assert f"`{entry.variable}`" in row
    assert not entry.default or f"`{entry.default}`" in row
    assert entry.help.split(" [default:")[0] in row


def test_the_table_of_options_is_current() -> None:
    assert options_page.page(CONFIGURATION) == CONFIGURATION, "run: python tests/options_page.py"


def commands(group: typer.Typer, *prefix: str) -> Iterator[str]:
    for command in group.registered_commands:
        callback = command.callback
        assert callback is not None
        yield " ".join((*prefix, command.name or callback.__name__.replace("_", "-")))
    for sub in group.registered_groups:
        assert sub.typer_instance is not None
        if not sub.hidden:
            yield from commands(sub.typer_instance, *prefix, str(sub.name))


@pytest.mark.parametrize("command", sorted(commands(app)))
def test_commands(command: str) -> None:
    *group, name = command.split()
    rows = [line for line in CLI.splitlines() if line.startswith("| `penstock " + " ".join(group))]
    assert any(re.search(rf"\b{name}\b", row) for row in rows), command


def test_exit_codes() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", CLI, re.MULTILINE)}


def test_emitted_metrics() -> None:
    folders = (ROOT / "src/penstock/services", ROOT / "src/penstock/indexing")
    sources = "".join(path.read_text() for one in folders for path in one.rglob("*.py"))
    names = set(re.findall(r'"((?:task|ingest|sqlQuery)/[a-z]+(?:/[a-z]+)?)"', sources))
    names |= {f"task/{end.lower()}/count" for end in (TaskState.SUCCESS, TaskState.FAILED)}
    assert {"task/run/time", "sqlQuery/time", "ingest/input/bytes"} <= names
    assert not {name for name in names if f"`{name}`" not in OPERATIONS}
    # Their names have the type of a supervisor in them.
    lags = re.findall(r'_one\(f"([A-Za-z]+)\{suffix\}"', sources)
    assert len(lags) == 4
    assert all(re.search(rf"`(?:ingest/TYPE|…)/{name}`", OPERATIONS) for name in lags)
    assert all(re.search(rf"`(?:ingest/TYPE|…)/{name}/time`", OPERATIONS) for name in lags)


def test_metrics() -> None:
    folders = (ROOT / "src/penstock/services", ROOT / "src/penstock/flow")
    sources = "".join(path.read_text() for one in folders for path in one.rglob("*.py"))
    names = set(re.findall(r'"(penstock_[a-z_]+)"', sources))
    assert len(names) > 10
    assert not {name for name in names if f"`{name}`" not in OPERATIONS}
