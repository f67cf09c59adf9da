"""Files that a reader's options select. Does not depend on Spark.

datasource      its name
url, token      the router's HTTP address, and its bearer token; or
dataDir         the data folder of a Penstock on this host; or
metadata, deepStorage   addresses of the metadata store and of the deep storage
interval        only rows of this interval, such as 2013-01-01/2013-02-01
includeRunning  true: also unpublished rows that running tasks announce
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval
from penstock.spark.tables.columns import union_columns
from penstock.spark.tables.model import Columns, TableFile
from penstock.spark.tables.remote import ask_router


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection: columns of the whole datasource, and its files, possibly none, clipped."""

    columns: Columns
    files: tuple[TableFile, ...]


def select(options: Mapping[str, str]) -> Selection:
    """Return the selection of the options, from one revision of the metadata.

    Raises:
        InvalidRequest: The options do not specify what to read.
        NotFound: The datasource has no data.
        Unavailable: The router or the metadata store does not answer.
    """
    name = options.get("datasource")
    if not name:
        raise InvalidRequest('set option("datasource", …) to the name of a datasource')
    running = options.get("includeRunning", "false").strip().lower()
    if running not in {"true", "false"}:
        raise InvalidRequest(f"option includeRunning must be true or false, not {running!r}")
    interval = Interval.parse(options["interval"]) if options.get("interval") else None
    url = options.get("url")
    files = ask_router(url, name, options.get("token")) if url else _from_metadata(options, name)
    chosen = tuple(file for file in files if running == "true" or not file.announced)
    if not chosen:
        raise NotFound(
            f'datasource "{name}" has no published segment yet:'
            ' set option("includeRunning", "true") to read rows of running tasks'
        )
    clipped = chosen if interval is None else tuple(_within(chosen, interval))
    return Selection(union_columns(chosen), clipped)


def _within(files: Iterable[TableFile], interval: Interval) -> Iterator[TableFile]:
    """Yield the files that may have rows of the interval, clipped to it."""
    for file in files:
        part = (file.clip or file.interval).intersection(interval)
        if part is not None:
            yield file if part == file.interval else replace(file, clip=part)


def _from_metadata(options: Mapping[str, str], name: str) -> tuple[TableFile, ...]:
    # Imported here: with a router, the SQL drivers need not be installed.
    from penstock.spark.tables.visible_files import MetadataTables  # noqa: PLC0415
    from penstock.storage.metadata import MetadataStore  # noqa: PLC0415

    address, deep_storage = _addresses(options)
    with MetadataStore.open(address) as store:
        return MetadataTables(store, deep_storage).tables().of(name)


def _addresses(options: Mapping[str, str]) -> tuple[str, str]:
    folder = options.get("dataDir")
    metadata = options.get("metadata")
    deep_storage = options.get("deepStorage")
    if folder:
        base = Path(folder)
        if not (base / "metadata.db").is_file() and not metadata:
            raise InvalidRequest(
                f"{folder} has no metadata.db: use the absolute path of Penstock's data folder,"
                ' or set option("url", …) to its router'
            )
        metadata = metadata or f"sqlite:///{base / 'metadata.db'}"
        deep_storage = deep_storage or str(base / "segments")
    if not metadata or not deep_storage:
        raise InvalidRequest(
            'set option("url", "http://127.0.0.1:8888"), or option("dataDir", …),'
            ' or option("metadata", …) and option("deepStorage", …)'
        )
    return metadata, deep_storage
