"""Tasks read no files of Penstock itself, no secrets, nor the kernel's folders. No JVM."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import JsonValue, TypeAdapter

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.read_guard import READ_GUARD, ReadGuard
from penstock.indexing.batch.batch_engine import ExternalInput
from penstock.indexing.engine import FileRange
from penstock.indexing.source.folder import FolderSupplier
from penstock.indexing.specs.input_formats import TsvFormat
from penstock.indexing.specs.inputs import ExternTable, InputSource
from penstock.services.host.private_files import read_guard
from penstock.services.options.table import PenstockOptions
from penstock.spark.batch.input.file_finder import FileFinder
from penstock.spark.batch.input.file_splits import InputFile
from penstock.spark.batch.input.open_files import opened
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.topic.record_locations import as_source, read_place
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock

FORMAT = TsvFormat(type="tsv", columns=("line",))


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Return a data folder whose guard is that of a service."""
    folder = tmp_path / "data"
    (folder / "segments" / "clicks").mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    (folder / "run").symlink_to(tmp_path / "disk")
    for file in ("metadata.db", "run/options.json", "segments/clicks/part.json"):
        (folder / file).write_text("secret\n")
    for file in ("token", "key.pem", "options.toml", "shared"):
        (tmp_path / file).write_text("secret\n")
    options = PenstockOptions(
        data_dir=folder,
        token_file=tmp_path / "token",
        tls_key=tmp_path / "key.pem",
        spark_secret_file=tmp_path / "shared",
    )
    READ_GUARD.set(read_guard(options, {"PENSTOCK_CONFIG": str(tmp_path / "options.toml")}))
    yield folder
    READ_GUARD.set(ReadGuard())


def find(source: JsonValue, scratch: Path) -> list[InputFile]:
    wanted: InputSource = TypeAdapter(InputSource).validate_python(source)
    finder = FileFinder(None, scratch, SparkBatchOptions(), lambda: None)
    return list(finder.find(ExternalInput(wanted, FORMAT)).files)


def secrets(data: Path) -> list[str]:
    above = data.parent
    (above / "link").symlink_to(data / "metadata.db")
    (above / "hard").hardlink_to(above / "token")
    names = ("token", "key.pem", "options.toml", "shared", "disk/options.json", "link", "hard")
    return [
        *(str(above / name) for name in names),
        str(data / "metadata.db"),
        f"/proc/{os.getpid()}/environ",
        f"/proc/self/root{data}/metadata.db",
    ]


def test_a_task_reads_no_secret_under_any_name(data: Path, tmp_path: Path) -> None:
    for path in secrets(data):
        folder, name = os.path.split(path)
        sources: list[dict[str, JsonValue]] = [
            {"type": "local", "files": [path]},
            {"type": "local", "baseDir": folder, "filter": name},
            {"type": "fsspec", "uris": [f"file://{path}"]},
            {"type": "fsspec", "paths": f"local://{path}"},
            {"type": "fsspec", "prefixes": [f"file://{path[:-1]}"]},
        ]
        for source in sources:
            with pytest.raises(InvalidRequest, match="must not read files of"):
                find(source, tmp_path / "scratch")


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::file:///proc/self/environ",
        "filecache::file:///proc/self/environ",
        "dir:///x::file:///proc/self",
        "dir:///proc/self/environ",
        "zip:///a.csv::file:///a.zip",
        "reference://x",
        "asynclocal:///proc/self/environ",
        "hdfs:///proc/self/environ",
        "hdfs://default/proc/self/environ",
    ],
)
def test_no_url_reaches_local_files_under_another_name(url: str, tmp_path: Path) -> None:
    kind = "hdfs" if url.startswith("hdfs") else "fsspec"
    for field in ("uris", "prefixes"):
        with pytest.raises(InvalidRequest, match="cannot be opened"):
            find({"type": kind, field: [url]}, tmp_path)


def test_a_statement_reads_no_environment_of_a_process(tmp_path: Path) -> None:
    table = ExternTable.model_validate(
        {
            "inputSource": {
                "type": "local",
                "baseDir": f"/proc/{os.getpid()}",
                "filter": "environ",
            },
            "inputFormat": {"type": "tsv", "columns": ["line"]},
            "signature": [{"name": "line", "type": "string"}],
        }
    )
    finder = FileFinder(None, tmp_path, SparkBatchOptions(), lambda: None)
    with pytest.raises(InvalidRequest, match=r"must not read files of /proc, .*read another file"):
        finder.find(ExternalInput(table.input_source, table.input_format))


def test_a_worker_notices_a_file_that_became_a_link(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("rows\n")
    for source in (
        {"type": "local", "files": [str(path)]},
        {"type": "fsspec", "uris": [f"file://{path}"]},
    ):
        path.unlink()
        path.write_text("rows\n")
        (found,) = find(source, tmp_path / "scratch")
        sent: InputFile = pickle.loads(pickle.dumps(found))
        with opened(sent) as file:
            assert file.read() == b"rows\n"
        path.unlink()
        path.symlink_to(data / "metadata.db")
        with pytest.raises(InvalidRequest, match="must not read files of"), opened(sent) as file:
            file.read()


def test_files_of_penstocks_own_choice_are_read(data: Path) -> None:
    (inline,) = find({"type": "inline", "data": "a"}, data / "tmp" / "scratch")
    with opened(inline) as file:
        assert file.read() == b"a"


def test_a_folder_stream_reads_no_secret(data: Path, tmp_path: Path) -> None:
    fs = OsFileSystem()
    for folder in (data / "run", tmp_path / "disk", Path("/proc/self")):
        with pytest.raises(InvalidRequest, match="must not read files of"):
            FolderSupplier(fs, VirtualClock(), str(folder)).available()
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log").write_text("rows\n")
    (logs / "b.log").symlink_to(data / "metadata.db")
    seen = FolderSupplier(fs, VirtualClock(), str(logs)).available()
    assert [one.latest for one in seen.partitions.values()] == [1]
    assert "must not read files of" in seen.skipped[str(logs / "b.log")]


def test_a_worker_reads_no_lines_of_a_file_that_became_a_link(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("rows\n")
    source = as_source(FileRange(0, str(path), 0, 1, 0, 5))
    READ_GUARD.set(ReadGuard())  # as in a worker, which has only what it is sent
    (piece,) = read_place(OsFileSystem(), source, 100)
    assert piece.messages.to_pylist() == [b"rows\n"]
    path.unlink()
    with pytest.raises(NotFound):
        list(read_place(OsFileSystem(), source, 100))
    path.symlink_to(data / "metadata.db")
    with pytest.raises(InvalidRequest, match="must not read files of"):
        list(read_place(OsFileSystem(), source, 100))
