"""Command `penstock import nifi-swap`: lists, exports or imports NiFi's swap files.

Owns the command, listing and exporting, and with `--into` the options and the report of an
import into a connection of a flow. Does not own the import itself
(`penstock.flow.nifi_import`).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from penstock.core.clock import SystemClock
from penstock.core.errors import CorruptData, InvalidRequest, PenstockError, counted
from penstock.core.instants import format_time
from penstock.services.cli import exit_codes
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import (
    Row,
    byte_output,
    echo,
    print_json,
    print_rows,
    translate_read_errors,
    warn,
)
from penstock.services.host.data_folder import DataFolder, DataFolderLock
from penstock.services.host.folder_permissions import use_umask

if TYPE_CHECKING:
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.nifi_import.nifi_content import NifiContent
    from penstock.flow.nifi_import.swap_import import NifiImport, StoppedFlow, SwapFileReport
    from penstock.flow.swap.nifi.nifi_swap_file import NifiSwapFile
    from penstock.storage.filesystem import FileSystem


_COLUMNS: Final = (
    *("file", "format", "queue", "flowfiles", "imported", "before", "left_out", "missing"),
    *("bytes", "damage"),
)


@dataclass(frozen=True, slots=True)
class SwapImportTarget:
    """Options of the command.

    Attributes:
        connection: Name or id of the connection.
        content: NiFi's content repository: a folder, or one for each container as NAME=FOLDER.
        without_content: Import FlowFiles without their content.
        queue: Id of NiFi's queue whose files to import; None: all files are of one queue.
    """

    connection: str
    content: Sequence[str] = ()
    without_content: bool = False
    queue: str | None = None

    def source(self, fs: FileSystem) -> NifiContent | None:
        """Return NiFi's content repository.

        Raises:
            InvalidRequest: A folder does not exist, or is named twice.
        """
        from penstock.flow.nifi_import.nifi_content import NifiContent  # noqa: PLC0415 - slow

        if self.content and self.without_content:
            raise InvalidRequest("--without-content needs no --content: leave out one of the two")
        folders: dict[str, str] = {}
        for text in self.content:
            name, equals, folder = text.partition("=")
            if not equals or "/" in name:
                name, folder = "", text
            if name in folders:
                whose = f"container {name}" if name else "all containers"
                raise InvalidRequest(f"names two folders for {whose}: use NAME=DIR", place=text)
            if not Path(folder).is_dir():
                raise InvalidRequest(
                    "is not a folder: name NiFi's content_repository, or a copy", place=folder
                )
            folders[name] = str(Path(folder).absolute())
        others = folders.pop("", None)
        return NifiContent(fs, folders, others) if folders or others else None


@dataclass(slots=True)
class _Outcome:
    """Outcome of all files."""

    rows: list[Row] = field(default_factory=list)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)

    def total(self, name: str) -> int:
        """Return the sum of a column."""
        return sum(int(str(row[name] or 0)) for row in self.rows)

    @property
    def damage(self) -> list[str]:
        """Return the damage of swap files."""
        return [str(row["damage"]) for row in self.rows if row["damage"]]


def import_into(paths: Sequence[Path], into: SwapImportTarget, *, as_json: bool) -> None:
    """Import swap files, and report the outcome of each.

    Raises:
        InvalidRequest: The options are invalid; nothing was changed.
        NotFound: There is no such connection.
        Conflict: Penstock runs.
        Unavailable: Full disk or I/O error; imported FlowFiles stay.
    """
    # Imported here, because no other command needs them.
    from penstock.flow.nifi_import.swap_import import (  # noqa: PLC0415
        NifiImport,
        StoppedFlow,
        SwapImportOptions,
        target_of,
    )
    from penstock.storage.disk import OsFileSystem  # noqa: PLC0415

    fs = OsFileSystem()
    source = into.source(fs)
    chosen = _choose(paths, into)
    options = CLI.options()
    use_umask(options)
    folder = DataFolder(options.data_dir.absolute())
    if not folder.flow.is_dir():
        raise InvalidRequest(
            f"{folder.path} contains no flow: apply one first, or use another folder: --data-dir"
        )
    lock = DataFolderLock(folder)
    lock.take()
    try:
        with StoppedFlow(str(folder.flow), fs=fs, clock=SystemClock()) as flow:
            connection = flow.connection(into.connection)
            _warn_of(flow)
            run = NifiImport(
                target_of(connection),
                flow.repository,
                flow.content,
                source,
                lambda: str(uuid.uuid4()),
                SwapImportOptions(without_content=into.without_content),
            )
            outcome = _import(run, chosen, SystemClock().now_ms())
    finally:
        if source is not None:
            source.close()
        lock.release()
    _show(outcome, str(connection), connection.id, as_json=as_json)
    if outcome.left_out or outcome.damage:
        raise typer.Exit(exit_codes.FAILED)


def _choose(paths: Sequence[Path], into: SwapImportTarget) -> list[Path]:
    """Return the files to import; unreadable files are left for the report.

    Raises:
        InvalidRequest: They are of several queues, or content would be lost without --without-
            content.
    """
    found: dict[str, list[Path]] = {}
    unreadable: list[Path] = []
    with_content: Path | None = None
    for path in paths:
        if path.name.endswith(".part"):
            warn(
                f"penstock: {path} is skipped: NiFi did not finish it, its FlowFiles are elsewhere"
            )
            continue
        try:
            summary = _open(path).summary
        except CorruptData:
            unreadable.append(path)
            continue
        if into.queue in (None, summary.queue):
            found.setdefault(summary.queue, []).append(path)
            if summary.size_bytes and with_content is None:
                with_content = path
    if len(found) > 1:
        raise InvalidRequest(
            f"the files are of {len(found)} queues of NiFi ({', '.join(sorted(found))}): import "
            "one after the other with --queue"
        )
    if not found and into.queue is not None:
        raise InvalidRequest(f"no file is of the queue {into.queue}", place="--queue")
    if with_content and not into.content and not into.without_content:
        raise InvalidRequest(
            "contains FlowFiles with content: name NiFi's content_repository with --content, or "
            "import them without content with --without-content",
            place=str(with_content),
        )
    chosen = {path for some in found.values() for path in some}.union(unreadable)
    return [path for path in paths if path in chosen]


def _open(path: Path, now_ms: int = 0) -> NifiSwapFile:
    from penstock.flow.swap.nifi.schema_swap_file import open_nifi_swap  # noqa: PLC0415 - slow

    with translate_read_errors(path):
        data = path.read_bytes()
    return open_nifi_swap(str(path), data, now_ms=now_ms)


def _warn_of(flow: StoppedFlow) -> None:
    for event in flow.events:
        warn(f"penstock: {event.message}")


def _import(run: NifiImport, paths: Sequence[Path], now_ms: int) -> _Outcome:
    """Import files. FlowFiles without a date count as queued now, so their ids decide the order."""
    outcome = _Outcome()
    run.expect(_readable(paths))
    for path in paths:
        row: Row = dict.fromkeys(_COLUMNS) | {"file": path.name}
        try:
            file = _open(path, now_ms)
            report = run.take(path.name, file)
            outcome.left_out += report.left_out
            row = _row(path, file, report)
        except CorruptData as error:
            row = {**row, "damage": str(error)}
        except PenstockError:  # narrow: warns only
            done = counted(outcome.total("imported"), "FlowFile")
            warn(
                f"penstock: {path.name} is incomplete, {done} of earlier files are imported: repeat"
                " the command to continue"
            )
            raise
        outcome.rows.append(row)
    return outcome


def _readable(paths: Sequence[Path]) -> Iterator[NifiSwapFile]:
    """Yield the readable files; files that cannot be opened are left for the report."""
    for path in paths:
        with suppress(CorruptData):
            yield _open(path)


def _row(path: Path, file: NifiSwapFile, report: SwapFileReport) -> Row:
    values = (
        path.name,
        file.format,
        file.summary.queue,
        file.read_count,
        report.imported,
        report.imported_before,
        sum(report.left_out.values()),
        file.missing_count,
        report.content_bytes,
        None if file.damage is None else str(file.damage),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _show(outcome: _Outcome, name: str, connection: str, *, as_json: bool) -> None:
    contents: list[Row] = [
        {"content": path, "flowfiles": count, "reason": reason}
        for (path, reason), count in sorted(outcome.left_out.items())
    ]
    if as_json:
        print_json(
            {
                "connection": connection,
                "name": name,
                "files": [dict(row) for row in outcome.rows],
                "left_out": [dict(row) for row in contents],
            }
        )
        return
    print_rows(outcome.rows, as_json=False)
    if contents:
        echo()
        echo("left out, because their content cannot be read:")
        echo()
        print_rows(contents, as_json=False)
    for damage in outcome.damage:
        warn(f"penstock: {damage}")
    before, left_out = outcome.total("before"), outcome.total("left_out")
    parts = [f"{counted(outcome.total('imported'), 'FlowFile')} imported into {name}"]
    parts += [f"{before:,} were imported before"] if before else []
    parts += [f"{left_out:,} left out"] if left_out else []
    parts += [f"{missing:,} lost to damage" for missing in [outcome.total("missing")] if missing]
    echo()
    echo(", ".join(parts))


_BATCH = 1_000
_HEAD_BYTES = 1 << 17


def add_to(app: typer.Typer) -> None:
    """Add the command to the group `import`."""
    app.command("nifi-swap")(nifi_swap)


def nifi_swap(
    files: Annotated[
        list[Path],
        typer.Argument(help="Swap files, or folders of them.", metavar="FILE…", show_default=False),
    ],
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            help="Write the FlowFiles as JSON lines; - is standard output.",
            metavar="OUT",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            help="Import the FlowFiles into this connection of the applied flow, by name or id.",
            metavar="CONNECTION",
        ),
    ] = None,
    content: Annotated[
        list[str] | None,
        typer.Option(
            "--content",
            help="NiFi's content_repository; NAME=DIR for each of several containers.",
            metavar="DIR",
        ),
    ] = None,
    without_content: Annotated[
        bool, typer.Option("--without-content", help="Import attributes without content.")
    ] = False,
    queue: Annotated[
        str | None,
        typer.Option("--queue", help="Import the files of this queue of NiFi.", metavar="ID"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List, export or import the FlowFiles in NiFi's swap files, of every version of NiFi.

    The files are not changed. If a file is damaged, the FlowFiles before the damaged place are
    used. The exit code is 1 if a file is damaged or a FlowFile was left out. Penstock must not run
    during an import, and FlowFiles that were imported before are not imported again.
    """
    paths = _expand(files)
    if into is not None:
        if export is not None:
            raise InvalidRequest("--into and --export exclude each other: leave out one")
        import_into(
            paths, SwapImportTarget(into, content or (), without_content, queue), as_json=as_json
        )
        return
    if content or without_content or queue:
        raise InvalidRequest("--content, --without-content and --queue need --into CONNECTION")
    with _output(export) as out:
        rows = [_take(path, out) for path in paths]
    if export != "-":
        print_rows(rows, as_json=as_json)
    damaged = [row for row in rows if row["damage"]]
    for row in damaged:
        warn(f"penstock: {row['damage']}")
    if not as_json and export != "-":
        missing = sum(int(str(row["missing"] or 0)) for row in rows)
        read = sum(int(str(row["flowfiles"])) for row in rows)
        echo()
        echo(f"{counted(read, 'FlowFile')} in {counted(len(rows), 'file')}, {missing:,} missing")
    if damaged:
        raise typer.Exit(exit_codes.FAILED)


def _expand(files: Sequence[Path]) -> list[Path]:
    """Return the files, those of a folder in the order in which NiFi would read them.

    Raises:
        InvalidRequest: A file does not exist, or a folder has no swap file.
    """
    from penstock.flow.swap.nifi.nifi_swap_file import NifiSwapName, recovery_order  # noqa: PLC0415 - slow

    found: list[Path] = []
    for file in files:
        if file.is_dir():
            names = (
                str(one)
                for one in file.iterdir()
                if one.is_file() and (NifiSwapName.parse(one.name) or _is_swap_file(one))
            )
            inside = [Path(name) for name in sorted(names, key=recovery_order)]
            if not inside:
                raise InvalidRequest(
                    f"{file} contains no swap file: name flowfile_repository/swap of a NiFi"
                )
            found += inside
        elif file.exists():
            found.append(file)
        else:
            raise InvalidRequest(f"{file} does not exist: name a swap file or a folder of them")
    return found


def _is_swap_file(path: Path) -> bool:
    """Return whether a file begins as NiFi's swap files do, ignoring its name."""
    from penstock.flow.swap.nifi.legacy import LegacySwapFile  # noqa: PLC0415 - slow
    from penstock.flow.swap.nifi.schema_swap_file import MAGIC  # noqa: PLC0415 - slow

    with translate_read_errors(path), path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(MAGIC):
        return True
    try:
        LegacySwapFile(str(path), head, 0)
    except CorruptData:
        return False
    return True


@contextmanager
def _output(export: str | None) -> Iterator[BinaryIO | None]:
    if export is None:
        yield None
        return
    if export == "-":
        yield byte_output()
        return
    path = Path(export)
    if path.exists():
        raise InvalidRequest(f"{path} exists: name another file, or remove it")
    try:
        opened = path.open("xb")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from error
    with opened:
        yield opened


def _take(path: Path, out: BinaryIO | None) -> Row:
    """Read one file, write its FlowFiles if requested, and return its row."""
    from penstock.flow.swap.nifi.schema_swap_file import open_nifi_swap  # noqa: PLC0415 - slow

    row: dict[str, object] = dict.fromkeys(
        ("file", "format", "queue", "flowfiles", "missing", "bytes", "oldest", "damage")
    )
    row |= {"file": path.name, "flowfiles": 0}
    try:
        with translate_read_errors(path):
            data = path.read_bytes()
        file = open_nifi_swap(str(path), data, now_ms=SystemClock().now_ms())
    except CorruptData as error:
        return row | {"damage": str(error)}
    oldest, size = _drain(file, out)
    return row | {
        "format": file.format,
        "queue": file.summary.queue,
        "flowfiles": file.read_count,
        "missing": file.missing_count,
        "bytes": size,
        "oldest": None if oldest is None else format_time(oldest),
        "damage": None if file.damage is None else str(file.damage),
    }


def _drain(file: NifiSwapFile, out: BinaryIO | None) -> tuple[int | None, int]:
    oldest: int | None = None
    size = 0
    for batch in file.batches(_BATCH):
        first = min(flowfile.entry_ms for flowfile in batch)
        oldest = first if oldest is None else min(oldest, first)
        size += sum(flowfile.size for flowfile in batch)
        if out is not None:
            out.write(_lines(file, batch))
    return oldest, size


def _lines(file: NifiSwapFile, flowfiles: Iterable[FlowFile]) -> bytes:
    from msgspec import json  # noqa: PLC0415 - no other command needs it

    return b"".join(json.encode(_shown(file, flowfile)) + b"\n" for flowfile in flowfiles)


def _shown(file: NifiSwapFile, flowfile: FlowFile) -> dict[str, object]:
    claim = flowfile.claim

    def known(field: str, value: object) -> object:
        return "unknown" if field in file.absent else value

    return {
        "queue": file.summary.queue,
        "id": flowfile.id,
        "size": flowfile.size,
        "entryDate": format_time(flowfile.entry_ms),
        "lineageStartDate": known("lineage_start_ms", format_time(flowfile.lineage_start_ms)),
        "lineageStartIndex": known("lineage_index", flowfile.lineage_index),
        "queuedDate": known("queued_ms", format_time(flowfile.queued_ms)),
        "queuedIndex": known("queue_index", flowfile.queue_index),
        "content": claim
        and {
            "container": claim.resource.container,
            "section": claim.resource.section,
            "identifier": claim.resource.id,
            "offset": claim.offset + flowfile.content_offset,
        },
        "attributes": dict(flowfile.attributes),
    }
