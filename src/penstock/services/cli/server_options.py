"""Options of a server on the command line: one for each entry of the table of options.

Owns the conversion of an entry to a parameter of a command. Every command that accepts options
knows an option that is added to the table (`services.options.table`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

import typer

from penstock.services.options.table import OptionEntry, option_entries

_ENTRIES = {entry.field_name: entry for entry in option_entries() if not entry.is_secret}


def _help(entry: OptionEntry) -> str:
    known = not entry.default or "[default:" in entry.help
    return entry.help if known else f"{entry.help} [default: {entry.default}]"


def _option(entry: OptionEntry) -> object:
    if entry.kind == "flag":
        return Annotated[bool | None, typer.Option(entry.flag, help=_help(entry))]
    return Annotated[str | None, typer.Option(entry.flag, help=_help(entry))]


DataDir = Annotated[str | None, typer.Option("--data-dir", help=_help(_ENTRIES["data_dir"]))]
FlowModulesOption = Annotated[
    str | None, typer.Option("--flow-modules", help=_help(_ENTRIES["flow_modules"]))
]
Config = Annotated[
    Path | None, typer.Option("--config", help="File of options [default: DIR/penstock.toml].")
]


def takes_options(
    but: Collection[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a server's options to a command; its first parameter receives the given ones, by field.

    Args:
        but: Fields of options that the command does not use.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        fields = [name for name in _ENTRIES if name not in but]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=None,
                annotation=_option(_ENTRIES[name]),
            )
            for name in fields
        ]

        def run(**values: object) -> None:
            given = {name: values.pop(name) for name in fields}
            command(given, **values)

        functools.update_wrapper(run, command)
        parameters = [*own, *options]
        parameters.sort(key=lambda one: one.default is not inspect.Parameter.empty)
        # The signature that libraries inspect.
        run.__dict__["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate
