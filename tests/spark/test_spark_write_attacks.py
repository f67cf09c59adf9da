"""Hostile writes: clients that send any file and any task, with the right to write a datasource.

They must not publish a file of others, nor one whose rows are not what its segment says.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.batch.spark_write import ATTEMPT, FILES_AGE_MAX_MS
from penstock.segments.layout import attempt_folder
from tests.spark.sink_kit import SinkWorld

TASK = "index_spark_" + "a" * 32
OTHER = "index_spark_" + "b" * 32
DAY_US = 86_400_000_000
NOON_US = 1_767_268_800_000_000  # 2026-01-01T12:00Z
TIME = pa.timestamp("us", tz="UTC")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkWorld]:
    with SinkWorld(tmp_path_factory.mktemp("attacks")) as made:
        made.write([("2026-01-01T01:00:00", "seen", 1)])
        yield made


def rows(*micros: int | None, **columns: pa.Array) -> pa.Table:
    times = pa.array(micros, pa.int64()).cast(TIME)
    given = columns or {
        "a": pa.array(["x"] * len(micros)),
        "n": pa.array([1] * len(micros), pa.int64()),
    }
    return pa.table({"__time": times, **given})


def folder_of(world: SinkWorld, task: str = TASK) -> Path:
    return Path(world.deep_store.root, attempt_folder(world.datasource, task, ATTEMPT))


def stored(world: SinkWorld, table: pa.Table, task: str = TASK, **form: Any) -> dict[str, object]:
    """Put a file into the folder of a task, and return its entry in the spec."""
    folder = folder_of(world, task)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"f{len(list(folder.iterdir()))}.parquet"
    pq.write_table(table, folder / name, store_schema=False, **form)
    return {
        "name": name,
        "rows": table.num_rows,
        "bytes": (folder / name).stat().st_size,
    }


def spec_of(world: SinkWorld, *files: Mapping[str, object], **more: object) -> dict[str, Any]:
    """Return the spec that the data source would send for these files."""
    (spec,) = world.specs[:1]
    count = sum(int(str(file["rows"])) for file in files)
    return {**spec, "id": TASK, "files": list(files), "rows": count, **more}


def failed(world: SinkWorld, spec: Mapping[str, object]) -> str:
    """Run a task that must fail, and return why. Nothing becomes visible."""
    before = world.rows()
    result = world.run(spec)
    assert result.error
    assert world.rows() == before
    return result.error


# Specs


@pytest.mark.parametrize(
    "name",
    [
        "../a.parquet",
        "/etc/passwd",
        "a/b.parquet",
        ".hidden.parquet",
        "a.csv",
        "",
        "a\n.parquet",
        "a.parquet\n",
        "x" * 300 + ".parquet",
        "%2e%2e.parquet",
    ],
)
def test_a_file_is_named_in_the_folder_of_the_task(world: SinkWorld, name: str) -> None:
    file = {"name": name, "rows": 1, "bytes": 1}
    with pytest.raises(InvalidRequest, match=r"files\[0\]\.name"):
        parse_batch_task(spec_of(world, file))


FILE = {"name": "a.parquet", "rows": 1, "bytes": 1}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"files": [FILE, FILE]}, "a.parquet twice"),
        ({"files": [{**FILE, "rows": 0}]}, "rows"),
        ({"files": [{**FILE, "path": "/etc/passwd"}]}, "path"),
        ({"files": [FILE] * 5_001}, "files"),
        ({"overwrite": []}, "overwrite"),
        ({"overwrite": ["chunks", "all"]}, "overwrite"),
        ({"overwrite": ["all"], "batch": {"queryId": "q", "batchId": 1}}, "is appended"),
        ({"batch": {"queryId": "../q", "batchId": 1}}, "queryId"),
        ({"batch": {"queryId": "q", "batchId": -1}}, "batchId"),
        ({"rows": -1}, "rows"),
    ],
    ids=str,
)
def test_specs_that_are_refused(world: SinkWorld, more: Mapping[str, object], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse_batch_task({**spec_of(world, FILE), **more})


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("dimensionsSpec", {"useSchemaDiscovery": True}, "list the dimensions"),
        ("transformSpec", {"filter": {"type": "true"}}, "select rows in Spark"),
        (
            "granularitySpec",
            {"segmentGranularity": "day", "intervals": ["2026-01-01/2026-01-02"]},
            "name the intervals to replace in overwrite",
        ),
    ],
)
def test_schemas_that_say_nothing_about_the_files(
    world: SinkWorld, part: str, value: object, reason: str
) -> None:
    spec = spec_of(world, FILE)
    spec["dataSchema"] = {**spec["dataSchema"], part: value}
    with pytest.raises(InvalidRequest, match=reason):
        parse_batch_task(spec)


# Files


def test_a_good_file_is_published(world: SinkWorld) -> None:
    task = "index_spark_" + "c" * 32
    file = stored(world, rows(NOON_US), task)
    assert not world.run({**spec_of(world, file), "id": task}).error
    assert (1, "x", 1) in world.rows()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rows": 2}, "has 1 rows, and its worker reported 2"),
        ({"bytes": 7}, "bytes, and its worker reported 7"),
        ({"name": "gone.parquet"}, "does not exist"),
    ],
)
def test_a_file_is_what_its_worker_reported(
    world: SinkWorld, change: Mapping[str, object], reason: str
) -> None:
    assert reason in failed(world, spec_of(world, {**stored(world, rows(NOON_US)), **change}))


def test_the_files_of_another_write_are_not_found(world: SinkWorld) -> None:
    file = stored(world, rows(NOON_US), OTHER)
    Path(
        world.deep_store.root, attempt_folder(world.datasource, TASK, ATTEMPT), str(file["name"])
    ).unlink(missing_ok=True)
    assert "does not exist" in failed(world, spec_of(world, file))


WRONG = {
    "another type": (
        rows(NOON_US, a=pa.array(["x"]), n=pa.array([1.5])),
        "column n has the type double",
    ),
    "another column": (
        rows(NOON_US, a=pa.array(["x"]), m=pa.array([1])),
        "has the columns __time, a, m",
    ),
    "a column more": (
        rows(NOON_US, a=pa.array(["x"]), n=pa.array([1]), secret=pa.array([1])),
        "has the columns __time, a, n, secret",
    ),
    "another order": (rows(NOON_US, n=pa.array([1]), a=pa.array(["x"])), "has the columns"),
    "no time": (rows(NOON_US, None), "rows without a time"),
    "two chunks": (rows(NOON_US, NOON_US + DAY_US), "more than one time chunk"),
    "no order": (rows(NOON_US, NOON_US - 1_000), "not sorted by time"),
    "no rows": (rows(), "has 0 rows"),
    "text that is none": (
        rows(NOON_US, a=pa.array([b"\xff"]).view(pa.string()), n=pa.array([1])),
        "not a Parquet file",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_has_rows_of_the_schema(world: SinkWorld, case: str) -> None:
    table, reason = WRONG[case]
    file = stored(world, table)
    spec = spec_of(world, {**file, "rows": max(1, table.num_rows)})
    assert reason in failed(world, spec)


def test_the_times_of_a_file_have_the_type_of_segments(world: SinkWorld) -> None:
    times = pa.array([NOON_US // 1000], pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    table = rows(NOON_US).set_column(0, "__time", times)
    assert "column __time has the type timestamp[ms" in failed(
        world, spec_of(world, stored(world, table))
    )


@pytest.mark.parametrize("damage", ["text", "cut", "page"])
def test_a_damaged_file_is_refused(world: SinkWorld, damage: str) -> None:
    file = stored(world, rows(*[NOON_US] * 1_000))
    path = Path(
        world.deep_store.root, attempt_folder(world.datasource, TASK, ATTEMPT), str(file["name"])
    )
    whole = path.read_bytes()
    if damage == "text":
        path.write_bytes(b"x" * 100)
    elif damage == "cut":
        path.write_bytes(whole[:-20])
    else:
        path.write_bytes(whole[:4] + b"\x00" * 60 + whole[64:])
    spec = spec_of(world, {**file, "bytes": path.stat().st_size})
    assert str(path) in failed(world, spec)


def test_a_symbolic_link_is_refused(world: SinkWorld) -> None:
    file = stored(world, rows(NOON_US))
    folder = folder_of(world)
    (folder / "link.parquet").symlink_to(folder / str(file["name"]))
    assert "link.parquet" in failed(world, spec_of(world, {**file, "name": "link.parquet"}))


# Footers


def relabelled(world: SinkWorld, file: Mapping[str, object], old: bytes, new: bytes) -> None:
    """Change bytes in the footer of a stored file, which keeps its size."""
    path = folder_of(world) / str(file["name"])
    content = path.read_bytes()
    at = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[at:]
    assert len(old) == len(new)
    assert old in footer
    path.write_bytes(content[:at] + footer.replace(old, new))


def text_of(value: str) -> pa.Table:
    return rows(NOON_US, a=pa.array([value]), n=pa.array([7]))


@pytest.mark.parametrize(
    ("table", "old", "new", "column"),
    [
        (text_of("seen-by-all"), b"seen-by-all", b"hidden-text", "a"),
        (
            rows(NOON_US, a=pa.array(["x"]), n=pa.array([77_777])),
            b"\xd1\x2f\x01",
            b"\xd1\x2f\x02",
            "n",
        ),
    ],
    ids=["text", "number"],
)
def test_bounds_that_would_hide_rows_are_refused(
    world: SinkWorld, table: pa.Table, old: bytes, new: bytes, column: str
) -> None:
    file = stored(world, table)
    relabelled(world, file, old, new)
    assert f"column {column} has the bounds" in failed(world, spec_of(world, file))


def test_bounds_without_the_rows_that_are_not_a_number_are_refused(world: SinkWorld) -> None:
    """Spark takes NaN for the greatest number, and would skip it by a maximum of 1."""
    table = rows(NOON_US, NOON_US, a=pa.array(["x", "y"]), n=pa.array([1.0, float("nan")]))
    spec = copy.deepcopy(spec_of(world, stored(world, table)))
    spec["dataSchema"]["dimensionsSpec"]["dimensions"][1]["type"] = "double"
    assert "column n has the bounds (1.0, 1.0)" in failed(world, spec)


def test_numbers_of_nulls_that_would_hide_rows_are_refused(world: SinkWorld) -> None:
    count = 40
    numbers = pa.array([None] * count + [1], pa.int64())
    file = stored(world, rows(*[NOON_US] * (count + 1), a=pa.array(["x"] * (count + 1)), n=numbers))
    # Field 3 of the statistics, a number of 64 bits: 40 nulls become 41, which is all rows.
    relabelled(world, file, bytes([0x16, 2 * count]), bytes([0x16, 2 * count + 2]))
    assert "column n has 41 nulls" in failed(world, spec_of(world, file))


@pytest.mark.parametrize("column", ["__time", "a", "n"])
def test_a_file_without_bounds_is_refused(world: SinkWorld, column: str) -> None:
    """Engines may read others from it, in fields that Arrow does not read."""
    others = [name for name in ("__time", "a", "n") if name != column]
    file = stored(world, rows(NOON_US), write_statistics=others)
    assert f"column {column} has no bounds" in failed(world, spec_of(world, file))


def test_text_that_is_too_long_for_bounds_is_published(world: SinkWorld) -> None:
    task = "index_spark_" + "e" * 32
    values = pa.array(["a", "z" * 10_000])
    file = stored(world, rows(NOON_US, NOON_US, a=values, n=pa.array([1, 2])), task)
    assert not world.run({**spec_of(world, file), "id": task}).error


FORMS = {
    "ids": {"metadata": {b"PARQUET:field_id": b"3"}},
    "required": {"nullable": False},
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_that_other_engines_would_read_in_another_way_are_refused(
    world: SinkWorld, form: str
) -> None:
    table = rows(NOON_US)
    field = pa.field("n", pa.int64(), **FORMS[form])
    table = table.cast(table.schema.set(2, field))
    assert "another form than Penstock writes" in failed(
        world, spec_of(world, stored(world, table))
    )


def test_files_of_other_writers_are_refused(world: SinkWorld) -> None:
    """Engines may read other statistics from their footers than Arrow does."""
    file = stored(world, rows(NOON_US))
    relabelled(world, file, b"parquet-cpp-arrow", b"parquet-mr2-arrow")
    assert "was written by 'parquet-mr2-arrow" in failed(world, spec_of(world, file))


def test_rows_that_the_counts_hide_are_noticed(world: SinkWorld) -> None:
    file = stored(world, rows(NOON_US))
    assert "the write reports 5" in failed(world, spec_of(world, file, rows=5))


# Batches


def batch_of(world: SinkWorld, number: int, batch: int, submitter: str) -> dict[str, Any]:
    """Return the spec of a batch of query q whose row has the number as value."""
    task = f"index_spark_{number:032x}"
    file = stored(world, rows(NOON_US, a=pa.array(["b"]), n=pa.array([number])), task)
    more = {"batch": {"queryId": "q", "batchId": batch}, "context": {"submitter": submitter}}
    return {**spec_of(world, file), "id": task, **more}


def test_another_principal_does_not_block_the_batches_of_a_query(world: SinkWorld) -> None:
    assert not world.run(batch_of(world, 101, 1, "user:ann")).error
    for number, batch in ((102, 2), (103, 2**40)):
        assert not world.run(batch_of(world, number, batch, "user:eve")).error
    assert not world.run(batch_of(world, 104, 2, "user:ann")).error
    # The driver of the query repeats its batch.
    assert not world.run(batch_of(world, 105, 2, "user:ann")).error
    assert [n for _, a, n in world.rows() if a == "b"] == [101, 102, 103, 104]


# Uploads


def post(world: SinkWorld, task: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any]]:
    address = urlsplit(world.url)
    connection = HTTPConnection(address.netloc, timeout=30)
    path = f"/penstock/v1/datasources/{world.datasource}/writes/{task}/files"
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_an_uploaded_file_gets_a_new_name_in_the_folder_of_its_task(world: SinkWorld) -> None:
    names = {post(world, OTHER, b"x")[1]["name"] for _ in range(2)}
    folder = folder_of(world, OTHER)
    assert len(names) == 2
    assert all((folder / name).read_bytes() == b"x" for name in names)
    assert not list((world.folder / "tmp").glob("*"))


@pytest.mark.parametrize("task", ["t1", "index_spark_x", f"{TASK}0", "..", TASK.upper()])
def test_an_upload_names_the_task_of_a_write(world: SinkWorld, task: str) -> None:
    status, answer = post(world, task, b"x")
    assert (status, "is not the id of a write" in answer["error"]) in {(400, True), (404, False)}


def test_an_empty_upload_and_a_large_one_are_refused(
    world: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert post(world, OTHER, b"")[0] == 400
    monkeypatch.setattr(world.writes, "_file_bytes_max", 10)
    status, answer = post(world, OTHER, b"x" * 11)
    assert (status, "at most 10 bytes" in answer["error"]) == (413, True)
    assert not list((world.folder / "tmp").glob("*"))


# Last, because it moves the clock of all


def test_a_file_that_the_janitor_may_delete_is_refused(world: SinkWorld) -> None:
    file = stored(world, rows(NOON_US))
    now_ms = world.clock.now_ms()
    world.clock.advance(ms=max(0, _changed_ms(world, file) - now_ms) + FILES_AGE_MAX_MS + 1_000)
    assert "written more than 5 hours ago" in failed(world, spec_of(world, file))


def _changed_ms(world: SinkWorld, file: Mapping[str, object]) -> int:
    path = Path(
        world.deep_store.root, attempt_folder(world.datasource, TASK, ATTEMPT), str(file["name"])
    )
    return path.stat().st_mtime_ns // 1_000_000
