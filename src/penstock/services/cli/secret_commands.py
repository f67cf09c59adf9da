"""`penstock secret …`: the sealed secrets of a data folder.

The commands work on the files of this host, so that no value passes through a server, and run as
the user that runs Penstock. No command prints a value.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, InvalidRequest, counted
from penstock.core.instants import format_time
from penstock.core.secret_names import SCHEME, check_secret_name
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import confirm, echo, print_rows
from penstock.services.host.data_folder import DataFolder, DataFolderLock
from penstock.storage.secrets.secret_sources import (
    CommandSource,
    FileSource,
    Secrets,
    Source,
    VariableSource,
    read_sources,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.services.options.table import PenstockOptions
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.secrets.secret_store import SecretStore

secret_app = typer.Typer(
    help="Secrets that specs, flows and options name as secret://NAME.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str, typer.Argument(help="Name of the secret.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_TASK_FILE: Final = "task.json"
# A longer input is not read to its end.
_INPUT_CHARACTERS_MAX: Final = 1 << 17


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(secret_app, name="secret")


@secret_app.command("set")
def set_secret(name: Name) -> None:
    """Seal a value, from standard input or a prompt that does not show it.

    A line break at the end of the input is not a part of the value.
    """
    check_secret_name(name)
    folder = _folder()
    if name in read_sources(folder.secrets).secrets:
        raise InvalidRequest(
            f"secrets.toml names another source of {name}: remove it there, or change the value"
            " there"
        )
    entry = _store(folder).set(name, _value(name))
    echo(f"sealed version {entry.version} of {name}: write {SCHEME}{name} where it is used")


@secret_app.command("list")
def list_secrets(as_json: Json = False) -> None:
    """List names, sources, versions and dates; never values."""
    folder = DataFolder(CLI.options().data_dir.absolute())
    sources = read_sources(folder.secrets).secrets
    rows: list[dict[str, object]] = [
        {"name": name, "source": _shown(source), "version": None, "created": None, "changed": None}
        for name, source in sources.items()
    ]
    rows += [
        {
            "name": one.name,
            "source": "sealed",
            "version": one.version,
            "created": format_time(one.created_ms),
            "changed": format_time(one.changed_ms),
        }
        for one in _store(folder).entries()
        if one.name not in sources
    ]
    rows.sort(key=lambda row: str(row["name"]))
    print_rows(rows, as_json=as_json, empty="no secrets")


@secret_app.command()
def remove(name: Name, yes: Yes = False) -> None:
    """Remove a sealed value. Specs and flows that name it fail from then on."""
    store = _store(_folder())
    check_secret_name(name)
    confirm(f"remove the secret {name}?", yes=yes, loss=f"{name} cannot be restored")
    store.remove(name)
    echo(f"removed {name}")


@secret_app.command()
def rotate() -> None:
    """Seal all values with a new key. The values stay the same.

    To replace a value, use penstock secret set. After an interruption, repeat the command. If
    secrets.toml names the source of the key, this source must first print two lines: the new key
    and then the old one.
    """
    count = _store(_folder()).rotate()
    echo(f"sealed {counted(count, 'secret')} with another key")


@secret_app.command()
def key() -> None:
    """Print a new key, for a source that secrets.toml names. Nothing is stored."""
    from penstock.storage.secrets.sealed_values import KEY_BYTES, SealingKey  # noqa: PLC0415 - slow to import, not for every command

    echo(SealingKey(os.urandom(KEY_BYTES)).text)


@secret_app.command()
def adopt(
    metadata_url: Annotated[
        str | None,
        typer.Option(
            "--metadata-url", help="URL of the metadata database [default: the data folder's]."
        ),
    ] = None,
) -> None:
    """Seal the passwords in stored specs, which then name them.

    Stop Penstock first. After an interruption, repeat the command.
    """
    from penstock.indexing.secrets import with_references  # noqa: PLC0415 - slow to import, not for every command
    from penstock.storage.metadata import MetadataStore, migrations  # noqa: PLC0415 - slow to import, not for every command
    from penstock.storage.metadata.backends.sqlite import erase_old_content  # noqa: PLC0415 - slow to import, not for every command
    from penstock.storage.metadata.sql_database import Database  # noqa: PLC0415 - slow to import, not for every command
    from penstock.storage.sqlite_urls import sqlite_path  # noqa: PLC0415 - slow to import, not for every command

    options = CLI.resolved_options(metadata_url=metadata_url)
    folder = _folder()
    secrets, names = _store(folder), set[str]()

    def adopted(value: str) -> str:
        name = secrets.adopt(value)
        names.add(name)
        return name

    def change(spec: Mapping[str, object]) -> Mapping[str, object] | None:
        return with_references(spec, adopted)

    lock = DataFolderLock(folder)
    lock.take()
    try:
        if options.metadata_url is None:
            folder.require_metadata()
        with MetadataStore.open(options.metadata_address, clock=SystemClock()) as store:
            _require_stopped(store)
        database = Database(options.metadata_address, SystemClock())
        try:
            counts = migrations.rewrite_specs(database, change)
        finally:
            database.close()
        local = sqlite_path(options.metadata_address)
        if local is not None:
            erase_old_content(str(local))
        tasks = _adopt_task_folders(options, change)
    finally:
        lock.release()
    specs = counts["penstock_supervisors"], counts["penstock_tasks"]
    echo(
        f"sealed {counted(len(names), 'secret')} of {counted(specs[0], 'supervisor spec')},"
        f" {counted(specs[1], 'task')} and {counted(tasks, 'task folder')}"
    )
    if names:
        echo("older backups still contain them: change these passwords if others could read one")
    for name in sorted(names):
        echo(f"  {SCHEME}{name}")


def _adopt_task_folders(
    options: PenstockOptions,
    change: Callable[[Mapping[str, object]], Mapping[str, object] | None],
) -> int:
    """Change the specs in the folders of tasks on this host; return their number."""
    import orjson  # noqa: PLC0415 - slow to import, not for every command

    from penstock.storage.disk import OwnerFileSystem  # noqa: PLC0415 - slow to import, not for every command

    fs, count = OwnerFileSystem(), 0
    roots = options.task_folders or (DataFolder(options.data_dir.absolute()).tasks,)
    for path in (one for root in roots for one in sorted(root.glob(f"*/{_TASK_FILE}"))):
        changed = change(orjson.loads(path.read_bytes()))
        if changed is not None:
            fs.write_atomically(str(path), orjson.dumps(changed))
            count += 1
    return count


def _require_stopped(store: MetadataStore) -> None:
    """Refuse to change specs that a process of another host has in its memory."""
    live = next((one for one in store.leases.list() if one.service in {"overlord", "worker"}), None)
    if live is not None:
        raise Conflict(
            f"the {live.service} at {live.host}:{live.port} uses these specs: stop it, wait until"
            " its lease has expired, and try again"
        )


def _folder() -> DataFolder:
    """Return the data folder, which may be new, if this user may change its secrets.

    Raises:
        InvalidRequest: It belongs to another user, whose processes could not read the files.
    """
    folder = DataFolder(CLI.options().data_dir.absolute())
    folder.prepare()
    user = folder.path.stat().st_uid
    if user != os.geteuid():
        raise InvalidRequest(
            f"{folder.path} belongs to user {user}, and this is user {os.geteuid()}: run the"
            " command as the other user"
        )
    return folder


def _store(folder: DataFolder) -> SecretStore:
    return Secrets(folder.secrets, os.environ).store()


def _value(name: str) -> str:
    if sys.stdin.isatty():
        first = getpass.getpass(f"value of {name}: ")
        if getpass.getpass("again: ") != first:
            raise InvalidRequest("the two values differ: nothing was changed")
        return first
    try:
        value = sys.stdin.read(_INPUT_CHARACTERS_MAX)
    except UnicodeDecodeError:
        raise InvalidRequest("the value on standard input is not valid UTF-8") from None
    return value.removesuffix("\n").removesuffix("\r")


def _shown(source: Source) -> str:
    match source:
        case VariableSource(variable):
            return f"variable {variable}"
        case FileSource(path):
            return f"file {Path(path)}"
        case CommandSource(arguments):
            return f"command {arguments[0]}"
