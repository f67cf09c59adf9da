"""Commands, options and variables that pages name exist.

Decisions and the changelog are left out: they name what existed at their time.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from penstock.services.cli.entry import app
from penstock.services.options.table import option_entries
from tests.docs.markdown_kit import PAGES, ROOT, fences

CURRENT = [page for page in PAGES if "decisions" not in page.relative_to(ROOT).parts]
# Options of other programs that pages explain, and the program.
FOREIGN = {
    "--add-opens": "java",
    "--least": "of the mutation gate, `python -m tests.simulation.mutation`",
    "--seconds": "of the mutation gate, as above",
    "--without": "make simulate",
}
SHELL = {"console", "bash", "sh", "shell"}
SPAN = re.compile(r"(?<!`)(`+)(?!`)(?P<text>.+?)(?<!`)\1(?!`)", re.DOTALL)
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
WORD = re.compile(r"[a-z][a-z0-9-]*")
OPTION = re.compile(r"--[a-z][a-z0-9-]*")
VARIABLE = re.compile(r"\bPENSTOCK_[A-Z0-9_]+")
BEFORE = re.compile(r"(?:[A-Za-z_]\w*=.*|sudo|exec|time|nohup|env|do|then|!)")
OPERATORS = {"|", "||", "&&", ";", "&", "(", ")", ">", ">>", "<", "<<", "2>"}


Command: TypeAlias = Any  # of the command line; Typer has a Click of its own, or uses the package


@cache
def root() -> TyperGroup:
    found = get_command(app)
    assert isinstance(found, TyperGroup)
    return found


def options_of(command: Command) -> set[str]:
    found = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return found | {"--help", "--install-completion", "--show-completion"}


def every_command(command: Command) -> Iterator[Command]:
    yield command
    if isinstance(command, TyperGroup):
        for one in command.commands.values():
            yield from every_command(one)


@cache
def every_option() -> frozenset[str]:
    return frozenset(name for one in every_command(root()) for name in options_of(one))


@cache
def every_variable() -> frozenset[str]:
    files = (path for top in ("src", "benchmarks") for path in (ROOT / top).rglob("*.py"))
    named = {name for path in files for name in VARIABLE.findall(path.read_text())}
    return frozenset(named | {entry.variable for entry in option_entries()})


def commands(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each `penstock` in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # such as an apostrophe in a comment
        words = line.split()
    current: list[str] = []
    for word in [*words, ";"]:
        if word not in OPERATORS:
            current.append(word)
            continue
        while current and BEFORE.fullmatch(current[0]):
            current.pop(0)
        if current and Path(current[0]).name == "penstock":
            yield current[1:]
        current = []


def mistakes(arguments: list[str]) -> Iterator[str]:
    """Yield what the command line does not have."""
    command: Command = root()
    known = options_of(command)
    takes_value = False
    for word in arguments:
        if option := OPTION.match(word):
            if option[0] not in known:
                yield f"{command.name} has no option {option[0]}"
            takes_value = "=" not in word and _takes_value(command, option[0])
        elif takes_value:
            takes_value = False
        elif isinstance(command, TyperGroup):
            if not WORD.fullmatch(word):
                return  # a placeholder, such as COMMAND or …
            if word not in command.commands:
                yield f"{command.name} has no command {word}"
                return
            command = command.commands[word]
            known |= options_of(command)


def _takes_value(command: Command, option: str) -> bool:
    found = next((one for one in command.params if option in one.opts), None)
    return found is not None and not found.is_flag and not found.count


def shell_lines(page: Path) -> Iterator[tuple[int, str]]:
    for fence in fences(page):
        language = fence.language.split(" ")[0]
        if language in SHELL:
            text = fence.text.replace("\\\n", " ")
            for line in text.splitlines():
                if language != "console" or line.startswith("$ "):
                    yield fence.line, line.removeprefix("$ ").partition(" #")[0]


def spans(page: Path) -> Iterator[str]:
    for found in SPAN.finditer(FENCED.sub("", page.read_text())):
        yield " ".join(found["text"].split())


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_commands_options_and_variables_exist(page: Path) -> None:
    found = [
        f"line {number}: {mistake}"
        for number, line in shell_lines(page)
        for arguments in commands(line)
        for mistake in mistakes(arguments)
    ]
    for span in spans(page):
        if span.startswith("penstock "):
            found += [f"`{span}`: {one}" for one in mistakes(span.split()[1:])]
        elif (option := OPTION.match(span)) and option[0] not in every_option() | FOREIGN.keys():
            found.append(f"`{span}`: no command has the option {option[0]}")
    found += [
        f"no variable is called {name}"
        for name in VARIABLE.findall(page.read_text())
        if name not in every_variable() and not name.startswith("PENSTOCK_INPUT_")
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("penstock topic create clicks --partitions 2", []),
        ("A=b penstock up --data-dir d && penstock sql 'SELECT 1' | head", []),
        ("penstock topic crate clicks", ["topic has no command crate"]),
        ("penstock topic create clicks --shards 2", ["create has no option --shards"]),
        ("penstock …", []),
        ("penstock topic COMMAND --help", []),
        ("cat a | .venv/bin/penstock emit", ["penstock has no command emit"]),
    ],
)
def test_the_rule_knows_its_cases(line: str, told: list[str]) -> None:
    found = [one for arguments in commands(line) for one in mistakes(arguments)]
    assert found == told
