"""Run the pages of the manual: write their files, type their commands, compare the output.

A page is read from top to bottom. Blocks with a title are files, which are written into the page's
folder. Lines of `console` blocks that begin with `$` are commands; the lines below a command are
its output. In a page, `/home/me` is the folder of the reader, and Penstock has its default ports.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from penstock.core.clock import SystemClock
from tests.docs.markdown_kit import ROOT, fences
from tests.system.walking_kit import Shown, within

PATIENCE_S = 300
HOME = "/home/me"
FOLDERS = ("howto", "tutorials")
# Pages whose commands other tests run: they need a backup, NiFi's files or a cluster.
OF_OTHERS = frozenset({"back-up-and-restore.md", "move-from-nifi.md", "use-a-spark-cluster.md"})
PAGES = [
    *(ROOT / "docs").glob("quickstart.md"),
    *(
        page
        for name in FOLDERS
        for page in sorted((ROOT / "docs" / name).glob("*.md"))
        if page.name not in OF_OTHERS
    ),
]
# Commands that change nothing. They are repeated until they print what the page shows, since a
# page cannot state when the first rows of a stream arrive. Other commands run once.
READING = re.compile(
    r"penstock (sql(?!.*\b(INSERT|REPLACE) INTO\b)(?!.* (--file|-f) )"
    r"|topic (stats|peek|list)"
    r"|supervisor (status|list|lag|stats|history)"
    r"|task (list|status|report|log|why)"
    r"|segment (list|timeline)|rule (list|history)|compaction (status|show)"
    r"|flow (status|bulletins|queue (list|count|search))|worker list|status)\b",
    re.DOTALL,
)


@dataclass(frozen=True)
class PageFile:
    """A file that a page shows, and its place in the page."""

    place: str
    name: str
    text: str


@dataclass(frozen=True)
class PageCommand:
    """A command of a page, its place, and the lines that the page shows as its output."""

    place: str
    text: str
    shown: tuple[str, ...]


def parts_of(page: Path, run_by: str = "") -> list[PageFile | PageCommand]:
    """Return the files of a page, and the commands that a test runs, in their order.

    Args:
        page: The page.
        run_by: Name of the test; "": the one that runs most of the commands of pages.
    """
    parts: list[PageFile | PageCommand] = []
    for fence in fences(page):
        if fence.title:
            parts.append(PageFile(fence.place, fence.title, f"{fence.text}\n"))
        elif fence.language == "console" and not fence.not_run and fence.run_by == run_by:
            parts += _commands(fence.place, fence.text)
    return parts


def commands_of(page: Path) -> list[PageCommand]:
    """Return the commands of a page that are run."""
    return [part for part in parts_of(page) if isinstance(part, PageCommand)]


def _commands(place: str, text: str) -> list[PageCommand]:
    page, _, first = place.rpartition(":")
    found: list[PageCommand] = []
    lines = text.splitlines()
    numbers = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(numbers, [*numbers[1:], len(lines)], strict=True):
        used = start + 1
        while not _is_complete("\n".join(lines[start:used])) and used < end:
            used += 1
        command = "\n".join(lines[start:used]).removeprefix("$ ")
        shown = tuple(lines[used:end])
        found.append(PageCommand(f"{page}:{int(first) + 1 + start}", command, shown))
    return found


def _is_complete(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:  # an open quotation mark or a backslash at the end
        return False
    return not command.endswith("\\")


def is_shown(shown: Sequence[str], output: str) -> bool:
    """Return whether an output is what a page shows.

    `…` stands for any text, and alone in a line for any lines. Widths of columns may differ.
    """
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else _line_pattern(line) + r"\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{_even(line)}\n" for line in _lines(output))) is not None


def _lines(output: str) -> list[str]:
    return output.rstrip().splitlines()


def _line_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in _even(line).split("…"))


def _even(line: str) -> str:
    return re.sub(r" +", " ", re.sub(r"─+", "─", line.strip()))


class Reader:
    """Follows a page: writes its files into a folder and types its commands there.

    Args:
        folder: Where the reader is.
        variables: Environment variables that the reader has exported.
        addresses: Addresses and folders in pages, and those that stand for them in this run.
    """

    def __init__(
        self, folder: Path, variables: Mapping[str, str], addresses: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self._environment = {**os.environ, "COLUMNS": "200", **variables}
        self._actual = {**addresses, HOME: str(folder)}
        self._programs = folder.parent / "programs"
        self._clock = SystemClock()
        self._pause = threading.Condition()
        self._write_programs()

    def follow(self, page: Path) -> None:
        """Write all files and type all commands of a page; fail where it is wrong."""
        self.do(parts_of(page))

    def do(self, parts: Iterable[PageFile | PageCommand]) -> None:
        """Write files and type commands of a page; fail where it is wrong."""
        for part in parts:
            if isinstance(part, PageFile):
                path = self.folder / part.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(self.here(part.text))
            else:
                self.type(part)

    def type(self, command: PageCommand) -> None:
        """Type a command; if it only reads, until it prints what the page shows."""
        deadline_s = self._clock.monotonic_s() + PATIENCE_S
        is_reading = READING.match(command.text) is not None
        asked_s = self._clock.monotonic_s()
        while problem := self._problem(command):
            if not is_reading or self._clock.monotonic_s() > deadline_s:
                pytest.fail(problem, pytrace=False)
            # A query takes what the work that is waited for would have.
            pause_s = min(3.0, max(0.5, 2 * (self._clock.monotonic_s() - asked_s)))
            with self._pause:
                self._clock.wait(self._pause, pause_s)
            asked_s = self._clock.monotonic_s()

    def _problem(self, command: PageCommand) -> str:
        """Run a command once, and return in which way the page is wrong, or ""."""
        done = self._run(command.text)
        fails = any(line.startswith("penstock: ") for line in command.shown)
        output = self._as_in_a_page(done.output + done.errors if fails else done.output)
        if fails != (done.code != 0):
            reason = f"exit code {done.code}, and the page shows {'an' if fails else 'no'} error"
        elif command.shown and not is_shown(command.shown, output):
            reason = "the output differs from the page"
        else:
            return ""
        expected = "\n".join(command.shown) or "(any output)"
        errors = "" if fails else self._as_in_a_page(done.errors)
        return (
            f"{command.place}: {reason}\n$ {command.text}\n"
            f"--- expected\n{expected}\n--- got\n{output}\n{errors}"
        )

    def _run(self, command: str) -> Shown:
        arguments = [self.here(word) for word in shlex.split(command)]
        if arguments[0] == "penstock" and not needs_a_shell(command):
            with mock.patch.object(sys, "path", [*sys.path]):  # `--flow-modules` adds to it
                return within(arguments[1:], self.folder, self._environment)
        path = f"{self._programs}:{self._environment['PATH']}"
        done = subprocess.run(
            ["bash", "-c", self.here(command, shlex.quote)],
            cwd=self.folder,
            env={**self._environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Shown(done.returncode, done.stdout, done.stderr)

    def _write_programs(self) -> None:
        """Make the Python of this test run the one of the commands."""
        self._programs.mkdir(exist_ok=True)
        for name, words in {
            "python": (),
            "python3": (),  # which Spark starts for its workers
            "penstock": ("-m", "penstock"),
            "pytest": ("-m", "pytest", "-p", "no:cacheprovider"),
        }.items():
            script = self._programs / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
            script.chmod(0o755)

    def here(self, text: str, quote: Callable[[str], str] = str) -> str:
        """Replace the addresses and folders of pages by those of this run."""
        for shown, actual in self._actual.items():
            text = text.replace(shown, quote(actual))
        return text

    def _as_in_a_page(self, text: str) -> str:
        for shown, actual in self._actual.items():
            text = text.replace(actual, shown)
        return text


def needs_a_shell(command: str) -> bool:
    """Return whether a command has pipes, redirections or other operators of a shell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split = True
    return any(set(word) <= set("|<>&;") for word in lexer if word)
