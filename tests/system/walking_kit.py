"""Types the commands of a page of the documentation, in order, as a reader would."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from penstock.core.clock import SystemClock
from penstock.services.cli.entry import run

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 300
_FENCE = re.compile(r"```console\n(.*?)```", re.DOTALL)
_FILE = re.compile(r'```\w+ title="(\S+)"\n(.*?)```', re.DOTALL)


def commands_of(page: str) -> list[str]:
    """Return the commands of a page below `docs`."""
    return [
        line[2:]
        for fence in _FENCE.findall((ROOT / "docs" / page).read_text())
        for line in fence.splitlines()
        if line.startswith("$ ")
    ]


def write_files(page: str, folder: Path) -> list[str]:
    """Write the files that a page shows, each with its name as title, and return their names."""
    found = _FILE.findall((ROOT / "docs" / page).read_text())
    for name, text in found:
        (folder / name).write_text(text)
    return [name for name, _ in found]


@dataclass(frozen=True)
class Shown:
    """What a command left: its exit code and what it printed."""

    code: int
    output: str
    errors: str


def within(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Shown:
    """Run a command within this process, arguments to exit code, at the cost of no start."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        code = run(list(arguments))
    return Shown(code, _text(output), _text(errors))


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)  # which flushes it
    return stream.read()


@dataclass
class Walk:
    """Where and how commands are typed.

    Attributes:
        folder: Where the reader is.
        variables: What the reader has exported.
        expected: What a command's output comes to hold; the longest beginning of it counts.
    """

    folder: Path
    variables: Mapping[str, str]
    expected: Mapping[str, str]

    def type(self, command: str) -> None:
        """Type a command until it works and prints what it should.

        Rows, segments and dead letters come a moment after what makes them; a page cannot say how
        long, and a reader would ask again.
        """
        clock, pause = SystemClock(), threading.Condition()
        environment = os.environ | {"COLUMNS": "200"} | dict(self.variables)
        for name, value in self.variables.items():
            command = command.replace(f"${name}", value)
        program, *arguments = shlex.split(command)
        assert program == "penstock"
        deadline_s = clock.monotonic_s() + PATIENCE_S
        while True:
            asked_s = clock.monotonic_s()
            done = within(arguments, self.folder, environment)
            expected = re.search(self._expectation(command), done.output)
            if done.code == 0 and expected:
                return
            report = f"{command}\n{done.output}\n{done.errors}"
            assert clock.monotonic_s() < deadline_s, report
            assert "Traceback" not in done.errors
            with pause:
                # A query takes what the work that is waited for would have.
                clock.wait(pause, min(2.0, max(0.5, 2 * (clock.monotonic_s() - asked_s))))

    def _expectation(self, command: str) -> str:
        matching = [start for start in self.expected if command.startswith(start)]
        return self.expected[max(matching, key=len)] if matching else ""
