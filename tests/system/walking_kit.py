"""Types the commands of a page of the documentation, in order, as a reader would."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from penstock.core.clock import SystemClock
from penstock.services.cli.entry import run

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 90
FLOW_GUIDE = "guides/build-a-flow.md"
_FENCE = re.compile(r"```console\n(.*?)```", re.DOTALL)
# Parts of a shown line that may differ from run to run, and their patterns in the output.
_VARYING = re.compile(
    r"(?P<any>…)|(?P<gap> +)|(?P<rule>─+)|(?P<id>(?<=_)[0-9a-z]{8,})"
    r"|(?P<unit>\b[kKMG]?i?B\b)|(?P<number>\d[\d,]*(?:\.\d+)?)"
)
_VARIES = {
    "any": ".*",
    "gap": " +",
    "rule": "─+",
    "id": "[0-9a-z]+",
    "unit": "[kKMG]?i?B",
    "number": r"\d[\d,.]*",
}
_FILE = re.compile(r"```\w+ (\S+)\n(.*?)```", re.DOTALL)


def commands_of(page: str) -> list[str]:
    """Return the commands of a page below `docs`."""
    return [
        line[2:]
        for fence in _FENCE.findall((ROOT / "docs" / page).read_text())
        for line in fence.splitlines()
        if line.startswith("$ ")
    ]


@dataclass(frozen=True)
class Step:
    """A command of a page, and the lines that the page shows as its output."""

    command: str
    shown: tuple[str, ...]


def steps_of(page: str) -> list[Step]:
    """Return the commands of a page below `docs`, each with the output that the page shows."""
    steps: list[Step] = []
    for fence in _FENCE.findall((ROOT / "docs" / page).read_text()):
        for part in f"\n{fence}".split("\n$ ")[1:]:
            command, *shown = part.splitlines()
            steps.append(Step(command, tuple(shown)))
    return steps


def lines_not_printed(shown: Sequence[str], output: str) -> list[str]:
    """Return the lines of a page that match no line of a command's output.

    Numbers, units of bytes, random ids and the widths of columns may differ; `…` stands for any
    text.
    """
    printed = [line.rstrip() for line in output.splitlines()]
    return [line for line in shown if not any(re.fullmatch(_pattern(line), one) for one in printed)]


def _pattern(line: str) -> str:
    parts, end = [], 0
    for found in _VARYING.finditer(line.rstrip()):
        kind = found.lastgroup
        assert kind is not None
        parts += [re.escape(line[end : found.start()]), _VARIES[kind]]
        end = found.end()
    return "".join([*parts, re.escape(line[end:].rstrip())])


def write_files(page: str, folder: Path) -> list[str]:
    """Write the files that a page shows, each behind its name, and return their names."""
    found = _FILE.findall((ROOT / "docs" / page).read_text())
    for name, text in found:
        (folder / name).write_text(text)
    return [name for name, _ in found]


def first_flow() -> str:
    """Return the file that the guide to flows has its reader write."""
    guide = (ROOT / "docs" / FLOW_GUIDE).read_text()
    [text] = re.findall(r"```yaml\n(# first.yaml\n.*?)```", guide, re.DOTALL)
    return str(text)


@dataclass(frozen=True)
class Shown:
    """What a command left: its exit code and what it printed."""

    code: int
    output: str
    errors: str


def in_a_process(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Shown:
    """Run a command as a shell does."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Shown(done.returncode, done.stdout, done.stderr)


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
        others: What is done for a command that is none of Penstock's, by its first word.
        run: How a command is run: each in a process of its own takes the start of a Python.
    """

    folder: Path
    variables: Mapping[str, str]
    expected: Mapping[str, str]
    others: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    run: Callable[[Sequence[str], Path, Mapping[str, str]], Shown] = within

    def type(self, command: str, shown: Sequence[str] = ()) -> None:
        """Type a command until it works and prints what it should.

        Args:
            command: The command.
            shown: Lines that the page shows as its output; see `lines_not_printed`.

        Rows, segments and dead letters come a moment after what makes them; a page cannot say how
        long, and a reader would ask again.
        """
        other = self.others.get(command.partition(" ")[0])
        if other is not None:
            other()
            return
        clock, pause = SystemClock(), threading.Condition()
        environment = os.environ | {"COLUMNS": "200"} | dict(self.variables)
        for name, value in self.variables.items():
            command = command.replace(f"${name}", value)
        program, *arguments = shlex.split(command)
        assert program == "penstock"
        deadline_s = clock.monotonic_s() + PATIENCE_S
        while True:
            asked_s = clock.monotonic_s()
            done = self.run(arguments, self.folder, environment)
            missing = lines_not_printed(shown, done.output)
            expected = re.search(self._expectation(command), done.output)
            if done.code == 0 and expected and not missing:
                return
            report = f"{command}\n{done.output}\n{done.errors}\nnot printed: {missing}"
            assert clock.monotonic_s() < deadline_s, report
            assert "Traceback" not in done.errors
            with pause:
                # A query takes what the work that is waited for would have.
                clock.wait(pause, min(2.0, max(0.5, 2 * (clock.monotonic_s() - asked_s))))

    def _expectation(self, command: str) -> str:
        matching = [start for start in self.expected if command.startswith(start)]
        return self.expected[max(matching, key=len)] if matching else ""
