"""Entry point: groups of commands, and the mapping of errors to exit codes.

Owns the tree of commands and the only place where an error becomes a line on standard error. The
modules of the groups are small; they import slow dependencies when they run.
"""

from __future__ import annotations

import copy
import functools
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_command

import penstock
from penstock.core.errors import InvalidRequest, NotReachable, PenstockError
from penstock.core.printable import quoted
from penstock.services.cli import (
    backups,
    cron,
    exit_codes,
    lookups,
    publish,
    secret_commands,
    server,
    sql,
    subscribe,
    table_commands,
    tls,
    topics,
    traces,
)
from penstock.services.cli.access import credential_commands, login, role_commands
from penstock.services.cli.command_options import CLI
from penstock.services.cli.flow import commands as flow_commands
from penstock.services.cli.imports import commands as import_commands
from penstock.services.cli.indexing import (
    compaction,
    rules,
    segments,
    supervisors,
    tasks,
    workers,
)
from penstock.services.cli.output import echo, prepare_streams, warn_lines
from penstock.services.cli.processor import new_processor as processor_commands

if TYPE_CHECKING:
    from collections.abc import Callable

EVERYWHERE = (
    "--data-dir, --url, --broker-url, --token-file, --tls-ca, --config and --debug may be anywhere"
    " in a command."
)
_HOISTED = frozenset(
    {"--data-dir", "--url", "--broker-url", "--token-file", "--tls-ca", "--config"}
)

_OF_PYDANTIC = (("Value error, ", ""), ("Input should be ", "it must be "))


class _PlainErrors(TyperGroup):
    """The group of all commands; rewords error messages of Typer that contain pydantic's text."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # Typer's context
        try:
            result: object = super().invoke(ctx)
        except typer.BadParameter as error:  # narrow: translates
            for theirs, plain in _OF_PYDANTIC:
                error.message = error.message.replace(theirs, plain)
            raise
        return result


app = typer.Typer(
    name="penstock",
    cls=_PlainErrors,
    help="Events in, SQL answers out, each event once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog=EVERYWHERE,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def options(
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", help="Data folder of the server.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="API of the server (PENSTOCK_URL).")
    ] = None,
    broker_url: Annotated[
        str | None, typer.Option("--broker-url", help="Broker, if it is not found automatically.")
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option("--token-file", help="File with the bearer token (or PENSTOCK_TOKEN)."),
    ] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option("--tls-ca", help="Authorities of the server's certificate, PEM, for https."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="File of options [default: DIR/penstock.toml].")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Events in, SQL answers out, each event once."""
    _ = version
    CLI.data_dir = data_dir
    CLI.url = url
    CLI.broker_url = broker_url
    CLI.token_file = token_file
    CLI.tls_ca = tls_ca
    CLI.config_file = config
    CLI.debug = debug


server.add_to(app)
backups.add_to(app)
topics.add_to(app)
publish.add_to(app)
subscribe.add_to(app)
import_commands.add_to(app)
supervisors.add_to(app)
tasks.add_to(app)
segments.add_to(app)
table_commands.add_to(app)
rules.add_to(app)
compaction.add_to(app)
workers.add_to(app)
secret_commands.add_to(app)
sql.add_to(app)
lookups.add_to(app)
traces.add_to(app)
cron.add_to(app)
tls.add_to(app)
credential_commands.add_to(app)
role_commands.add_to(app)
login.add_to(app)
flow_commands.add_to(app)
processor_commands.add_to(app)


def _show_whole_summaries(group: typer.Typer) -> None:
    """Wrap the first line of each command in `--help`, which Typer cuts off at 80 columns."""
    for command in group.registered_commands:
        summary = command.help or (command.callback.__doc__ if command.callback else None) or ""
        command.short_help = command.short_help or summary.strip().partition("\n")[0]
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            _show_whole_summaries(inner.typer_instance)


_show_whole_summaries(app)


def main() -> None:
    """Run the command line and exit."""
    prepare_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; never raises."""
    try:
        front, rest = _separated(arguments)
        commands = command_tree(rest[0] if rest else "")
        commands(args=front + rest, prog_name="penstock")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else exit_codes.OK
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
    except BrokenPipeError:  # `penstock … | head`
        sys.stderr.close()
        return exit_codes.OK
    except PenstockError as error:
        return _failed(error)
    except UnicodeEncodeError as error:
        # Python represents each byte of the command line that is not UTF-8 by a lone surrogate.
        if not any(_is_half(character) for character in error.object[error.start : error.end]):
            raise
        return _failed(_not_utf8(arguments, error))
    except OSError as error:
        return _failed(error)
    return exit_codes.OK


@functools.cache
def command_tree(first: str) -> Callable[..., object]:
    """Build the command or group with a name, or all commands if there is none, which takes 50 ms.

    Each is built once per process.
    """
    commands = [one for one in app.registered_commands if one.name == first]
    groups = [one for one in app.registered_groups if one.name == first]
    if not commands and not groups:
        return get_command(app)
    part = copy.copy(app)
    part.registered_commands, part.registered_groups = commands, groups
    return get_command(part)


def with_common_options_first(arguments: list[str]) -> list[str]:
    """Move the options that every command accepts to the front, where they are declared once.

    Raises:
        InvalidRequest: The token is one of them, which an earlier release accepted.
    """
    front, rest = _separated(arguments)
    return front + rest


def _separated(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options that every command accepts, and the other arguments. Raises as above."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, given, _ = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif word == "--debug" or (name in _HOISTED and given):
            front.append(word)
        elif name == "--token":
            raise InvalidRequest(
                "--token is no longer an option, because every user of this host can read the"
                " command line: write the token to a file and give --token-file FILE, or set"
                " PENSTOCK_TOKEN"
            )
        elif name in _HOISTED:
            front += [word, next(words, "")]
        else:
            rest.append(word)
    return front, rest


def _is_half(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _not_utf8(arguments: list[str], error: UnicodeEncodeError) -> InvalidRequest:
    """Return the error for the argument with bytes that are not UTF-8."""
    named = (one for one in arguments if any(map(_is_half, one)))
    value = quoted(next(named, error.object))
    return InvalidRequest(f"{value} has bytes that are not UTF-8: write it in UTF-8")


def _failed(error: Exception) -> int:
    if CLI.debug:
        warn_lines("".join(traceback.format_exception(error)).rstrip())
    warn_lines(f"penstock: {error}")
    if isinstance(error, NotReachable):
        return exit_codes.NOT_REACHABLE
    return exit_codes.USAGE if isinstance(error, InvalidRequest) else exit_codes.FAILED
