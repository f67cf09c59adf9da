"""Page of the command line, from the tree of commands. `cli_examples` has one example for each."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from penstock.services.cli import exit_codes
from penstock.services.cli.entry import app
from penstock.services.options.table import option_entries
from reference.cli_examples import EXAMPLES
from reference.markdown import fence, head, sentence, table

_ABOUT: Final = """\
Every command of `penstock`, with its options, what it prints or changes, and an example.
`penstock --help` and `penstock COMMAND --help` show the same texts. Lists are tables for readers;
use `--json` in programs.
"""
_SERVER: Final = """\
## Which server a command talks to

1. The server at `--url http://HOST:PORT` or `PENSTOCK_URL`. The command asks it for the broker's
   address; `--broker-url` gives the address if that one is not reachable.
2. Otherwise the server whose data folder is `--data-dir`, `PENSTOCK_DATA_DIR` or `./data`: it writes
   its addresses to `penstock.json` in that folder when it is ready.
3. Otherwise the addresses of the [options](configuration.md). If you name a data folder that has no
   `penstock.json`, the command fails instead of using the default addresses.

A server with a token requires `--token-file FILE` or the variable `PENSTOCK_TOKEN`. For an
`https://` address, `--tls-ca FILE` or `PENSTOCK_TLS_CA` names the authority of its certificate.
"""
_OUTPUT: Final = """\
## Output

Results go to standard output, and errors to standard error. An error says what is wrong, where, and
what to do. If a terminal is too narrow for a table, long texts are cut and end in `…`, or each row
is shown as several lines. In a pipe, nothing is cut.

Commands escape control characters in data, so that data cannot change the terminal: an escape
character is shown as `\\x1b`. In a pipe or a file, `penstock sub`, `penstock tail` and
`penstock sql --format csv` write the exact bytes.
"""
_CODES: Final[Mapping[str, str]] = {
    "OK": "The command succeeded.",
    "FAILED": "The command failed: the server could not do it, the named object does not exist, a"
    " task failed, the limit of rows cut a result, a port is in use, or a check of `penstock doctor` failed.",
    "USAGE": "The command line, an option or the input is invalid. Nothing was changed.",
    "NOT_REACHABLE": "No server answered.",
    "RESTART_REQUESTED": "Only `penstock server`: the process cannot continue, because a thread ended"
    " unexpectedly, the overlord could not stop its work at the end of its term, or the FlowFile"
    " repository refuses commits. The log has the cause. Start the role again.",
    "INTERRUPTED": "Ctrl-C interrupted the command.",
}
_COMMON: Final = (
    "Each command lists its own codes. With `--wait`, and `penstock task wait`, code 1 also means that"
    " the task failed. Ctrl-C ends every command with 130."
)
# Commands that talk to no running server.
_WITHOUT_SERVER: Final = frozenset(
    {"up", "server", "doctor", "demo", "init", "backup", "restore", "cron", "import nsq"}
    | {"import nifi-swap", "flow validate", "processor list", "processor show", "processor new"}
    | {"tls init", "tls renew"}
)
_ALIAS: Final = re.compile(r"The same as (\S+)\.")
_SERVER_FIELDS: Final = frozenset(one.field_name for one in option_entries())


@dataclass(frozen=True)
class Command:
    """A command: its words after `penstock`, and Typer's object."""

    words: str
    typer: Any


def commands() -> list[Command]:
    """Return every command that is not internal, in the order of `--help`."""
    return list(_walk(get_command(app), ()))


def _walk(group: Any, words: tuple[str, ...]) -> Iterator[Command]:
    for name, one in group.commands.items():
        if one.hidden:
            continue
        if hasattr(one, "commands"):
            yield from _walk(one, (*words, name))
        else:
            yield Command(" ".join((*words, name)), one)


def page() -> str:
    """Return docs/reference/cli.md."""
    text = head("Command line", "the commands in the code", _ABOUT)
    lines = [text, "", *_SERVER.splitlines(), "", *_OUTPUT.splitlines(), "", *_exit_codes()]
    lines += ["", "## Options of every command", "", *_common_options()]
    groups = get_command(app).commands  # type: ignore[attr-defined]  # Typer's group
    shown = ""
    for command in commands():
        first = command.words.partition(" ")[0]
        heading = first if hasattr(groups[first], "commands") else ""
        if heading != shown and heading:
            lines += ["", f"## penstock {heading}", "", sentence(groups[heading].help)]
        shown = heading
        lines += _section(command, 3 if heading else 2)
    return "\n".join(lines) + "\n"


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes"
    named = {name: value for name, value in vars(exit_codes).items() if name.isupper()}
    yield from table(
        ("code", "meaning"), [(str(code), _CODES[name]) for name, code in named.items()]
    )
    yield from ("", _COMMON)


def _common_options() -> Iterator[str]:
    yield "These may be anywhere in a command. `penstock --version` prints the version."
    own = [one for one in get_command(app).params if one.name != "version"]
    yield from table(("option", "default", "meaning"), map(_option, own))


def _section(command: Command, level: int) -> Iterator[str]:
    yield from ("", f"{'#' * level} penstock {command.words}", "")
    if same := _ALIAS.fullmatch(command.typer.short_help or ""):
        other = " ".join((*command.words.split()[:-1], same[1]))
        yield f"The same as [`penstock {other}`](#penstock-{other.replace(' ', '-')})."
        yield from ("", "Example:", *fence("sh", EXAMPLES[command.words]))
        return
    about, _, details = inspect.cleandoc(command.typer.help or "").partition("\n\n")
    yield sentence(about)
    if details:
        yield from ("", " ".join(details.split()))
    own = [one for one in command.typer.params if not one.hidden]
    server = [one for one in own if one.name in _SERVER_FIELDS and _takes_all(own)]
    own = [one for one in own if one not in server]
    yield from fence("text", _usage(command.words, own, more=bool(server)))
    arguments = [one for one in own if one.param_type_name == "argument"]
    rows = [(f"`{_value(one)}`", _argument(one.help or "")) for one in arguments]
    yield from table(("argument", "meaning"), rows)
    options = [one for one in own if one.param_type_name == "option"]
    yield from table(("option", "default", "meaning"), map(_option, options))
    if server:
        yield from ("", "It also takes all [options of a server](configuration.md).")
    yield from ("", f"Exit codes: {', '.join(map(str, exit_codes_of(command)))}.", "", "Example:")
    yield from fence("sh", EXAMPLES[command.words])


def exit_codes_of(command: Command) -> list[int]:
    """Return the exit codes of a command, without that of Ctrl-C."""
    codes = [exit_codes.OK, exit_codes.FAILED, exit_codes.USAGE]
    if command.words not in _WITHOUT_SERVER:
        codes.append(exit_codes.NOT_REACHABLE)
    if command.words == "server":
        codes.append(exit_codes.RESTART_REQUESTED)
    return codes


def _argument(text: str) -> str:
    about, _, default = text.partition(" [default: ")
    return sentence(about) + (f" Default: {default.removesuffix(']')}." if default else "")


def _takes_all(parameters: Sequence[Any]) -> bool:
    return len({one.name for one in parameters} & _SERVER_FIELDS) > 10


def _usage(words: str, parameters: Sequence[Any], *, more: bool) -> str:
    parts = [f"penstock {words}"]
    for one in parameters:
        if one.param_type_name == "argument":
            text = _value(one) + (" …" if one.nargs == -1 and "…" not in _value(one) else "")
            parts.append(text if one.required else f"[{text}]")
    required = [f"{one.opts[0]} {_value(one)}" for one in parameters if _is_required(one)]
    optional = any(one.param_type_name == "option" and not _is_required(one) for one in parameters)
    return " ".join((*parts, *required, *(["[OPTION …]"] if optional or more else [])))


def _is_required(one: Any) -> bool:
    return one.param_type_name == "option" and (one.required or "[required]" in (one.help or ""))


def _value(one: Any) -> str:
    if one.metavar:
        return str(one.metavar)
    if one.param_type_name == "argument":
        return str(one.name).upper()
    if one.is_flag:
        return ""
    value = {int: "N", Path: "PATH"}.get(_type(one))
    return value or str(one.opts[0]).rpartition("-")[2].upper()


def _type(one: Any) -> Any:
    return one.type_descriptor.annotation


def _option(one: Any) -> tuple[str, str, str]:
    meaning, _, described = (one.help or "").partition(" [default: ")
    meaning = meaning.removesuffix(" [required]")
    names = ", ".join(f"`{f'{name} {_value(one)}'.strip()}`" for name in reversed(one.opts))
    if _is_required(one):
        default = "required"
    elif described:
        default = described.removesuffix("]").removesuffix("].")
    elif one.is_flag or one.default in (None, "", ()):
        default = ""
    else:
        default = f"`{getattr(one.default, 'value', one.default)}`"
    text = sentence(meaning)
    if isinstance(_type(one), type) and issubclass(_type(one), Enum):
        text += f" One of {', '.join(f'`{choice.value}`' for choice in _type(one))}."
    return names, default, text
