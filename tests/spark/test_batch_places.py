"""Where batch tasks read and write on this host: no folder is left out, no name is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.core.errors import InvalidRequest, StorageUnavailable
from penstock.core.intervals import Granularity
from penstock.indexing.batch.batch_engine import ExternalInput
from penstock.indexing.specs.input_formats import JsonFormat
from penstock.indexing.specs.inputs import LocalInput
from penstock.segments.deep_storage import DeepStore
from penstock.spark.batch.final_files import BatchTarget, finalize
from penstock.spark.batch.input.file_finder import FileFinder
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.chunk_files import FileForm
from penstock.spark.topic.row_shape import TimeField


def test_the_names_of_an_attempt_are_durable_up_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "segments"
    folder = Path(DeepStore(str(root)).attempt_folder("wikipedia", "task", "first"))
    folder.mkdir(parents=True)
    (folder / "a.parquet").touch()
    synced: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink())
    )
    finalize(str(folder), ["a.parquet"])
    made = [folder, *folder.parents]
    assert synced == made[: made.index(root) + 1]


def files_below(
    folder: Path, monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None]
) -> list[str]:
    """Return the JSON files that a task finds; `before` is told of a folder that is looked at."""
    looked = os.scandir

    def look(place: str) -> object:
        before(str(place))
        return looked(place)

    monkeypatch.setattr(os, "scandir", look)
    given = LocalInput(base_dir=str(folder), filter="*.json")
    finder = FileFinder(TimeField("at"), folder / "scratch", SparkBatchOptions(), lambda: None)
    return [file.path for file in finder.find(ExternalInput(given, JsonFormat())).files]


def test_a_folder_that_goes_while_it_is_looked_at_has_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Penstock's own folder of tasks may be below the one that is read."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "rows.json").write_text("{}")

    def end(place: str) -> None:
        if place.endswith("tasks"):
            (tmp_path / "tasks").rmdir()

    assert files_below(tmp_path, monkeypatch, end) == [str(tmp_path / "rows.json")]


def test_a_folder_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "rows.json").write_text("{}")

    def refuse(place: str) -> None:
        # Whoever runs the tests may be allowed to read every folder.
        if place.endswith("shut"):
            raise PermissionError(13, "Permission denied", place)

    with pytest.raises(InvalidRequest, match=r"shut cannot be read \(Permission denied\)"):
        files_below(tmp_path, monkeypatch, refuse)


def test_inline_rows_are_utf_8_in_a_process_of_any_locale(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from penstock.indexing.batch.batch_engine import ExternalInput
from penstock.indexing.specs.input_formats import JsonFormat
from penstock.indexing.specs.inputs import InlineInput
from penstock.spark.batch.input.file_finder import FileFinder
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.topic.row_shape import TimeField
finder = FileFinder(TimeField("at"), Path(sys.argv[1]), SparkBatchOptions(), lambda: None)
given = ExternalInput(InlineInput(type="inline", data=chr(0x6F22)), JsonFormat())
(found,) = finder.find(given).files
assert Path(found.path).read_bytes() == b"\\xe6\\xbc\\xa2"
"""
    of_ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, **of_ascii},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_makes_no_deep_storage_whose_disk_is_gone(tmp_path: Path) -> None:
    root = tmp_path / "disk" / "deep"
    folder = DeepStore(str(root)).attempt_folder("wikipedia", "task", "first")
    rows = pa.table({"__time": pa.array([0], pa.timestamp("us", "UTC")), "n": [1]})
    target = BatchTarget(
        folder, Granularity.parse("day"), ("__time", "n"), FileForm(1, ("__time",))
    )
    with pytest.raises(StorageUnavailable, match=f"{root} is missing: mount it"):
        target.write(rows, 0)
    assert not root.parent.exists()
    root.mkdir(parents=True)
    (made,) = target.write(rows, 0)
    assert (Path(folder) / made.name).stat().st_size == made.bytes
