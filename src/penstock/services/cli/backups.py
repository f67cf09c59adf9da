"""`penstock backup` and `penstock restore`."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, counted
from penstock.indexing.secrets import masked_url
from penstock.services.cli import exit_codes
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import Bars, echo, print_json, print_rows, progress_bars, warn
from penstock.services.host.data_folder import FORMAT_FILE, DataFolder, DataFolderLock
from penstock.services.options import resolution
from penstock.services.options.table import PenstockOptions, local_path
from penstock.storage.disk import OsFileSystem
from penstock.storage.sqlite_urls import sqlite_path, sqlite_url

if TYPE_CHECKING:
    from rich.progress import TaskID

    from penstock.services.backup.backup import BackupProgress
    from penstock.services.backup.manifest import BackupPart

_SHOWN_MAX = 10

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeepStorage = Annotated[
    str | None,
    typer.Option("--deep-storage", help="Folder or URL of segments [default: the data folder's]."),
]
MetadataUrl = Annotated[
    str | None,
    typer.Option(
        "--metadata-url", help="URL of the metadata database [default: the data folder's]."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("backup")(backup)
    app.command("restore")(restore)


def backup(
    folder: Annotated[Path, typer.Argument(help="A new folder for the backup.", metavar="DEST")],
    deep_storage: DeepStorage = None,
    metadata_url: MetadataUrl = None,
    as_json: Json = False,
) -> None:
    """Copy a Penstock, running or not, into a new folder.

    Use --deep-storage and --metadata-url of the command that started it, unless it runs here.
    """
    # Imported here, because no other command needs them.
    from penstock.services.backup.backup import Backup, BackupSource  # noqa: PLC0415 - slow to import, not for every command
    from penstock.storage.metadata import MetadataStore  # noqa: PLC0415 - slow to import, not for every command

    options = _options_of(deep_storage, metadata_url)
    data = DataFolder(options.data_dir.absolute())
    if not (data.path / FORMAT_FILE).exists():
        raise InvalidRequest(
            f"{data.path} is not the data folder of a Penstock: name one with --data-dir"
        )
    _require_own(data)
    data.prepare()
    require_metadata(options)
    options = resolution.with_secrets(options, CLI.secrets())
    clock = SystemClock()
    with (
        _private_files(),
        MetadataStore.open(options.metadata_address, clock=clock) as store,
        _progress() as progress,
    ):
        task_logs = masked_url(options.task_logs_address)
        source = BackupSource(
            *(str(data.path), store, options.deep_storage_address, task_logs),
            access=str(options.access_path),
        )
        target = str(folder.absolute())
        report = Backup(source, target, OsFileSystem(), clock, uuid.uuid4().hex, progress).run()
    manifest = report.manifest
    if as_json:
        print_json(
            {
                "id": manifest.id,
                "parts": _rows(report.parts),
                "missing": list(manifest.missing),
                "damaged": list(report.damaged),
                "advice": list(manifest.advice),
            }
        )
    else:
        print_rows(_rows(report.parts), as_json=False)
        echo()
        echo(f"the backup of {data.path} is in {target}")
        for advice in manifest.advice:
            warn(f"penstock: {advice}")
    _warn_of(
        manifest.missing, "the deep storage lacks files of segments, or has them in another size"
    )
    _warn_of(report.damaged, "these files of topics are damaged, also in the backup")
    if manifest.missing or report.damaged:
        raise typer.Exit(exit_codes.FAILED)


def _options_of(deep_storage: str | None, metadata_url: str | None) -> PenstockOptions:
    """Return the options of the Penstock running in the folder; if none runs, the given ones."""
    given = CLI.options(deep_storage=deep_storage, metadata_url=metadata_url)
    running = CLI.live_options()
    if running is None:
        return given
    for flag, wanted, address, used in (
        ("--deep-storage", deep_storage, given.deep_storage_address, running.deep_storage_address),
        ("--metadata-url", metadata_url, given.metadata_address, running.metadata_address),
    ):
        if wanted is not None and _absolute(address) != _absolute(used):
            raise InvalidRequest(
                f"the Penstock that runs in {running.data_dir} uses {masked_url(used)}: leave out"
                f" {flag}",
                place=flag,
            )
    return running


def _absolute(address: str) -> str:
    local = sqlite_path(address) or local_path(address)
    return address if local is None else str(Path(local).absolute())


def restore(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder that `penstock backup` wrote.", metavar="SRC")
    ] = None,
    deep_storage: DeepStorage = None,
    metadata_url: MetadataUrl = None,
    from_segments: Annotated[
        bool,
        typer.Option(
            "--from-segments", help="Rebuild lost metadata from the segments, without a backup."
        ),
    ] = False,
    skip_unknown: Annotated[
        bool,
        typer.Option(
            "--skip-unknown",
            help="With --from-segments: leave out files whose segments are unknown.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a backup into the empty data folder given by --data-dir.

    After an interruption, repeat the same command.
    """
    options = CLI.options(deep_storage=deep_storage, metadata_url=metadata_url)
    if from_segments == (folder is not None):
        raise InvalidRequest(
            "name either a backup to restore or --from-segments: see penstock restore --help"
        )
    if CLI.data_dir is None and "PENSTOCK_DATA_DIR" not in os.environ:
        raise InvalidRequest("name the data folder to restore with --data-dir")
    options = resolution.with_secrets(options, CLI.secrets())
    with _private_files():
        if folder is None:
            _rebuild(options, skip_unknown=skip_unknown, as_json=as_json)
        else:
            given = {"--deep-storage": deep_storage, "--metadata-url": metadata_url}
            _restore(options, folder, given, as_json=as_json)


def _restore(
    options: PenstockOptions, folder: Path, given: Mapping[str, str | None], *, as_json: bool
) -> None:
    from penstock.services.backup.restore import Restore, RestoreTarget  # noqa: PLC0415 - slow to import, not for every command
    from penstock.storage.secrets.secret_store import KEY_FILE, VALUES_FILE  # noqa: PLC0415 - slow to import, not for every command

    def import_metadata(path: str) -> None:
        from penstock.storage.metadata import MetadataStore  # noqa: PLC0415 - slow to import, not for every command

        clock = SystemClock()
        with MetadataStore.open(options.metadata_address, clock=clock) as store:
            store.read_copy(path, clock)

    data_dir = str(options.data_dir.absolute())
    elsewhere = import_metadata if options.metadata_url else None
    target = RestoreTarget(data_dir, options.deep_storage_address, elsewhere)
    with _progress() as progress:
        report = Restore(str(folder.absolute()), target, OsFileSystem(), progress).run()
    if as_json:
        absent = list(report.absent)
        print_json({"id": report.manifest.id, "parts": _rows(report.parts), "absent": absent})
    else:
        print_rows(_rows(report.parts), as_json=False)
        echo()
        echo(f"{data_dir} holds the Penstock of {report.manifest.created}")
    if report.options_aside:
        warn(
            "penstock: the options of the backup are in penstock.toml.of-the-backup: check their"
            " paths and addresses, then rename it to penstock.toml"
        )
    secrets = DataFolder(Path(data_dir)).secrets
    if (secrets / VALUES_FILE).exists() and not (secrets / KEY_FILE).exists():
        warn(
            f"penstock: the sealed secrets of the backup need their key: copy it to"
            f" {secrets / KEY_FILE} (0600), or name its source in secrets.toml"
        )
    where = options.deep_storage_address
    _warn_of(report.absent, f"{where} lacks these objects of segments, or has them in another size")
    _warn_of(
        report.manifest.missing,
        "files of segments were missing or damaged when the backup was made",
    )
    if report.absent:
        raise typer.Exit(exit_codes.FAILED)
    if not as_json:
        echo(f"start it with {CLI.start_command(data_dir, given)}")


def _rebuild(options: PenstockOptions, *, skip_unknown: bool, as_json: bool) -> None:
    from penstock.services.backup.rebuild import (  # noqa: PLC0415 - slow to import, not for every command
        list_segment_files,
        rebuild_metadata,
    )
    from penstock.storage.metadata.backends.sqlite import fold_log_in  # noqa: PLC0415 - slow to import, not for every command

    data = DataFolder(options.data_dir.absolute())
    data.check()
    with _progress() as progress:
        # Before the data folder is created, which an error here would leave behind.
        files = list_segment_files(
            options.deep_storage_address, progress, skip_unknown=skip_unknown
        )
        data.prepare()
        lock = DataFolderLock(data)
        lock.take()
        try:
            # Under another name, so that an incomplete file does not start as a complete one.
            made, place = data.metadata.with_name(f"{data.metadata.name}.rebuilt"), data.metadata
            if options.metadata_url is None and place.exists():
                raise InvalidRequest(
                    f"{place} exists: --from-segments makes metadata that is lost; move the file"
                    " away"
                )
            made.unlink(missing_ok=True)
            address = options.metadata_url or sqlite_url(made)
            found = rebuild_metadata(files, address, SystemClock(), progress)
            if options.metadata_url is None:
                fold_log_in(str(made))
                fs = OsFileSystem()
                fs.rename(str(made), str(place))
                fs.fsync_folder(str(data.path))
        finally:
            lock.release()
    rows = [
        {"datasource": name, "segments": one.segments, "rows": one.rows, "left_out": one.left_out}
        for name, one in sorted(found.datasources.items())
    ]
    if as_json:
        print_json({"datasources": rows, "unknown": list(found.unknown)})
        return
    print_rows(rows, as_json=False, empty="no segments")
    if found.unknown:
        warn(
            "penstock: the segment files do not contain the following, so it may be missing or"
            " wrong:"
        )
    for sentence in found.unknown:
        warn(f"  {sentence}")


def require_metadata(options: PenstockOptions) -> None:
    """Refuse a data folder whose metadata is lost; see `DataFolder.require_metadata`."""
    if options.metadata_url is None:
        DataFolder(options.data_dir.absolute()).require_metadata()


def _require_own(data: DataFolder) -> None:
    """Refuse a backup by a user other than Penstock's, whose processes could not open its files.

    Nothing could be deleted then: the broker checks the hold before it deletes a file.
    """
    user = (data.path / FORMAT_FILE).stat().st_uid
    if user != os.geteuid():
        raise InvalidRequest(
            f"{data.path} belongs to user {user}, and this is user {os.geteuid()}, whose files"
            " the processes there could not open: run the backup as the other user"
        )


def _rows(parts: Mapping[BackupPart, tuple[int, int]]) -> list[dict[str, object]]:
    return [
        {"part": part.value, "files": files, "bytes": size} for part, (files, size) in parts.items()
    ]


def _warn_of(paths: tuple[str, ...], what: str) -> None:
    if paths:
        more = len(paths) - _SHOWN_MAX
        rest = f", and {counted(more, 'other')}" if more > 0 else ""
        warn(f"penstock: {what}: {', '.join(paths[:_SHOWN_MAX])}{rest}")


@contextmanager
def _private_files() -> Iterator[None]:
    """Create files for this user only: metadata and options may contain passwords."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def _progress() -> Iterator[BackupProgress]:
    """Show the progress: a bar on a terminal, otherwise a line for each stage."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with progress_bars() as bars:
        yield _Bars(bars)


class _Bars:
    """Progress as bars, one for each stage."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._bar: TaskID | None = None
        self._endless: TaskID | None = None  # the bar, if it has no total

    def stage(self, name: str, files: int | None) -> None:
        """Show the current stage."""
        if self._endless is not None:
            self._bars.update(self._endless, 1, 1)
        self._bar = self._bars.add(name, files)
        self._endless = self._bar if files is None else None

    def note(self, text: str) -> None:
        """Show a result above the bars."""
        self._bars.note(text)

    def copied(self, _size: int) -> None:
        """Count a file."""
        if self._bar is not None:
            self._bars.advance(self._bar)


class _Lines:
    """Progress as lines on standard error."""

    def stage(self, name: str, files: int | None) -> None:
        """Report the current stage."""
        warn(name if files is None else f"{name}: {counted(files, 'file')}")

    def copied(self, _size: int) -> None:
        """Do nothing for single files."""

    def note(self, text: str) -> None:
        """Report a result."""
        warn(text)
