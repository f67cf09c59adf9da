"""`penstock import nifi-swap`: list, export or import FlowFiles that NiFi's queues swapped out.

Owns the command, listing and exporting. Does not own importing (`nifiinto`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from penstock.core.clock import SystemClock
from penstock.core.errors import CorruptData, InvalidRequest, counted
from penstock.core.instants import format_time
from penstock.services.cli import exit_codes
from penstock.services.cli.imports.nifiinto import Into, import_into
from penstock.services.cli.output import Row, byte_output, print_rows, reading, say, warn

if TYPE_CHECKING:
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.swap.nifi.swap_files import NifiSwapFile

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

    The files are not changed. FlowFiles before damage are used; the exit code is 1 if there is
    damage, or if a FlowFile was left out. Penstock must not run during an import, and FlowFiles
    that were imported before are not imported again.
    """
    paths = _expand(files)
    if into is not None:
        if export is not None:
            raise InvalidRequest("--into and --export exclude each other: leave out one")
        import_into(paths, Into(into, content or (), without_content, queue), as_json=as_json)
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
        say()
        say(f"{counted(read, 'FlowFile')} in {counted(len(rows), 'file')}, {missing:,} missing")
    if damaged:
        raise typer.Exit(exit_codes.FAILED)


def _expand(files: Sequence[Path]) -> list[Path]:
    """Return the files, those of a folder in the order in which NiFi would read them.

    Raises:
        InvalidRequest: A file does not exist, or a folder has none.
    """
    from penstock.flow.swap.nifi.swap_files import SwapName, reading_order  # noqa: PLC0415 - slow

    found: list[Path] = []
    for file in files:
        if file.is_dir():
            names = (
                str(one)
                for one in file.iterdir()
                if one.is_file() and (SwapName.parse(one.name) or _is_swap_file(one))
            )
            inside = [Path(name) for name in sorted(names, key=reading_order)]
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
    from penstock.flow.swap.nifi.reader import MAGIC  # noqa: PLC0415 - slow

    with reading(path), path.open("rb") as file:
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
    from penstock.flow.swap.nifi.reader import open_nifi_swap  # noqa: PLC0415 - slow

    row: dict[str, object] = dict.fromkeys(
        ("file", "format", "queue", "flowfiles", "missing", "bytes", "oldest", "damage")
    )
    row |= {"file": path.name, "flowfiles": 0}
    try:
        with reading(path):
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
