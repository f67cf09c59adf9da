"""`penstock import nsq`: import the topics of an nsqd."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.core.errors import NotFound, counted
from penstock.services.cli.command_options import CLI
from penstock.services.cli.output import Row, echo, print_json, print_rows, progress_bars, warn
from penstock.services.host.data_folder import DataFolderLock
from penstock.services.host.folder_permissions import private_data_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.progress import TaskID

    from penstock.broker.nsq_import import ImportedTopic, NsqFileReport, NsqImport, QueueReport


def add_to(app: typer.Typer) -> None:
    """Add the command to the group `import`."""
    app.command()(nsq)


def nsq(
    folder: Annotated[Path, typer.Argument(help="The nsqd's --data-path.", metavar="DATA_DIR")],
    bad: Annotated[
        bool, typer.Option("--bad", help="Also read the .bad files that nsqd has set aside.")
    ] = False,
    doubtful: Annotated[
        bool, typer.Option("--doubtful", help="Also import messages whose length is damaged.")
    ] = False,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Skip topics that exist here already.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Import the topics, channels and messages of an nsqd.

    Neither nsqd nor Penstock may be running on its folder. The nsqd's folder is not changed.
    """
    # Imported here, because no other command needs them.
    from penstock.broker.nsq_import import (  # noqa: PLC0415
        NsqdFolder,
        NsqImport,
        NsqImportOptions,
    )
    from penstock.storage.disk import OsFileSystem  # noqa: PLC0415

    fs = OsFileSystem()
    server = CLI.options()
    options = NsqImportOptions(include_bad=bad)
    with NsqdFolder.open(str(folder), fs=fs, options=options) as source:
        if not source.topics:
            raise NotFound(f"{folder} has no data of an nsqd: name its --data-path")
        target = private_data_folder(server)
        lock = DataFolderLock(target)
        lock.take()
        try:
            run = NsqImport(
                source,
                str(target.topics),
                include_doubtful=doubtful,
                skip_existing=skip_existing,
                fs=fs,
            )
            with _progress() as progress:
                topics = run.run(progress)
        finally:
            lock.release()
        for warning in source.warnings:
            warn(f"penstock: {folder}: {warning}")
    if as_json:
        print_json(
            {
                "topics": _topic_rows(topics),
                "files": _file_rows(run.reports.items()),
                "totals": asdict(_Totals.of(topics, run)),
            }
        )
    else:
        _print(topics, run, doubtful=doubtful)


def _print(topics: Sequence[ImportedTopic], run: NsqImport, *, doubtful: bool) -> None:
    print_rows(_topic_rows(topics), as_json=False)
    for queue, report in run.reports.items():
        if report.metadata:
            warn(f"penstock: metadata of {queue}: {report.metadata}")
    damaged = _file_rows(
        (queue, report) for queue, report in run.reports.items() if report.lost or report.doubtful
    )
    if damaged:
        echo()
        echo("files of damaged queues:")
        echo()
        print_rows(damaged, as_json=False)
    totals = _Totals.of(topics, run)
    left_out = ""
    if totals.doubtful and not doubtful:
        left_out = f", {totals.doubtful:,} doubtful left out"
        warn("penstock: --doubtful also imports the messages whose length is damaged")
    imported = counted(totals.messages, "message")
    echo()
    echo(f"{imported} imported{left_out}, {totals.lost:,} lost to damage")


@dataclass(frozen=True, slots=True)
class _Totals:
    """Numbers in the last line of output.

    Attributes:
        messages: Imported messages.
        doubtful: Messages whose length is damaged; included in the imported ones if requested.
        lost: Lost messages.
    """

    messages: int
    doubtful: int
    lost: int

    @classmethod
    def of(cls, topics: Sequence[ImportedTopic], run: NsqImport) -> _Totals:
        reports = run.reports.values()
        return cls(
            sum(topic.messages for topic in topics),
            sum(report.doubtful for report in reports),
            sum(report.lost for report in reports),
        )


def _topic_rows(topics: Sequence[ImportedTopic]) -> list[Row]:
    return [
        {
            "topic": topic.name,
            "messages": topic.messages,
            "channels": topic.channels,
            "result": topic.left_alone or "imported",
        }
        for topic in topics
    ]


def _file_rows(reports: Iterable[tuple[object, QueueReport]]) -> list[Row]:
    return [
        {
            "file": _file_name(queue, file),
            "state": file.state,
            "messages": file.records,
            "doubtful": file.doubtful,
            "lost": file.lost,
            "damage": _damage(file),
        }
        for queue, report in reports
        for file in report.files
    ]


def _file_name(queue: object, file: NsqFileReport) -> str:
    if file.state == "unknown":
        return f"somewhere in the files of {queue}"
    return file.name if file.file_count == 1 else f"{file.name} and later"


def _damage(file: NsqFileReport) -> str:
    places = [(one.start, f"{one.reason} at byte {one.start:,}") for one in file.damage]
    places += [
        (one.position, f"doubtful message at byte {one.position:,}: {one.reason}")
        for one in file.doubts
    ]
    shown = [words for _, words in sorted(places)[:3]]
    more = len(places) - len(shown)
    return ", ".join(shown) + (f", and {counted(more, 'more place')}" if more else "")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _topic, _done, _total: None
        return
    with progress_bars() as bars:
        known: dict[str, TaskID] = {}

        def advance(topic: str, done: int, total: int) -> None:
            if topic not in known:
                known[topic] = bars.add(topic, total)
            bars.update(known[topic], done)

        yield advance
