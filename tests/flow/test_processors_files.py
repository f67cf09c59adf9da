"""ListFiles, GetFile and FetchFile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Conflict, NotFound, Unavailable
from penstock.flow.processor import InvalidConfiguration
from penstock.flow.processors.files import folders
from penstock.flow.processors.files.folders import FoundFile, open_folder
from penstock.flow.processors.files.get_files import FetchFile, GetFile, ListFiles
from penstock.flow.processors.files.list_source import (
    DIGEST_CHARS,
    TAKEN_MAX,
    SeenFiles,
    TrackingMode,
)
from penstock.testing.clock import DEFAULT_START_MS
from penstock.testing.flow import ProcessorRunner

START_S = DEFAULT_START_MS / 1000


def put(path: Path, data: bytes = b"data", *, age_s: float = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (START_S - age_s, START_S - age_s))
    return path


def names(runner: ProcessorRunner[ListFiles] | ProcessorRunner[GetFile]) -> list[str]:
    taken = [
        sent.attributes["path"] + sent.attributes["filename"] for sent in runner.sent("success")
    ]
    runner.clear()
    return taken


# -- ListFiles


def test_each_file_is_listed_once_oldest_first(tmp_path: Path) -> None:
    put(tmp_path / "b.csv", age_s=30)
    put(tmp_path / "a.csv", age_s=20)
    put(tmp_path / "deep/er/c.csv", b"12345", age_s=10)
    with ProcessorRunner(ListFiles, {"folder": str(tmp_path)}) as runner:
        assert runner.run_until_idle() == 1
        last = runner.sent("success")[-1]
        assert last.attributes["file.path"] == str(tmp_path / "deep/er/c.csv")
        assert last.attributes["absolute.path"] == str(tmp_path / "deep/er")
        assert last.attributes["file.size"] == "5"
        assert last.attributes["file.lastModifiedTime"] == "2012-12-31T23:59:50.000+00:00"
        assert last.content == b""
        assert names(runner) == ["./b.csv", "./a.csv", "deep/er/c.csv"]
        assert runner.yielded_ms == 1_000
        put(tmp_path / "d.csv", age_s=90)  # older than what was taken
        runner.run_until_idle()
        assert names(runner) == ["./d.csv"]
        put(tmp_path / "a.csv", b"changed")
        runner.run_until_idle()
        assert names(runner) == ["./a.csv"]


def test_what_was_listed_is_known_after_a_restart(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path / f"{number}")
    with ProcessorRunner(ListFiles, {"folder": str(tmp_path), "batch_size": 2}) as runner:
        runner.run()
        assert names(runner) == ["./0", "./1"]
        runner.restart()
        runner.run_until_idle()
        assert names(runner) == ["./2", "./3", "./4"]
        runner.restart({"folder": str(tmp_path / "..") + f"/{tmp_path.name}/", "recurse": False})
        runner.run_until_idle()
        assert names(runner) == []


def test_a_commit_that_fails_leaves_files_for_later(tmp_path: Path) -> None:
    put(tmp_path / "a")
    with ProcessorRunner(ListFiles, {"folder": str(tmp_path)}) as runner:

        def full() -> None:
            raise Unavailable("full")

        runner.before_commit(full)
        with pytest.raises(Unavailable):
            runner.run()
        runner.before_commit(lambda: None)
        runner.run_until_idle()
        assert names(runner) == ["./a"]


def test_filters(tmp_path: Path) -> None:
    put(tmp_path / ".hidden")
    put(tmp_path / "young", age_s=1)
    put(tmp_path / "old", age_s=10_000)
    put(tmp_path / "small", b"")
    put(tmp_path / "large", b"x" * 200)
    put(tmp_path / "fits")
    put(tmp_path / "below/fits")
    put(tmp_path / "skip/fits")
    (tmp_path / "link").symlink_to(tmp_path / "fits")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    properties = {
        "folder": str(tmp_path),
        "maximum_age": "1 hour",
        "minimum_size": "1 B",
        "maximum_size": "100 B",
        "path_filter": "(below)?",
    }
    with ProcessorRunner(ListFiles, properties) as runner:
        runner.run_until_idle()
        assert sorted(names(runner)) == ["./fits", "./link", "below/fits"]
        runner.advance(5_000)
        runner.run_until_idle()
        assert names(runner) == ["./young"]
        runner.restart({**properties, "recurse": False, "file_filter": r"\..*"})
        runner.run_until_idle()
        assert names(runner) == ["./.hidden"]


def test_a_name_that_is_no_text_is_left_out(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff"
    os.close(os.open(path, os.O_CREAT))
    os.utime(path, (START_S - 10, START_S - 10))
    put(tmp_path / "fine")
    with ProcessorRunner(ListFiles, {"folder": str(tmp_path)}) as runner:
        runner.run_until_idle()
        assert names(runner) == ["./fine"]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with ProcessorRunner(ListFiles, {"folder": str(tmp_path / "no")}) as runner:
        with pytest.raises(NotFound, match="no such file or folder"):
            runner.run()
        put(tmp_path / "no/longer")
        runner.run()
        assert names(runner) == ["./longer"]


def test_a_url_is_a_folder_too() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/listed/a.txt", b"abc")
    memory.pipe("/listed/b/c.txt", b"abcd")
    try:
        properties = {"folder": "memory://listed", "minimum_age": "0 sec", "tracking": "files"}
        with ProcessorRunner(ListFiles, properties) as runner:
            # Its files are of this machine's time, which is after the virtual one.
            runner.advance(100 * 365 * 86_400_000)
            runner.run_until_idle()
            paths = [sent.attributes["file.path"] for sent in runner.sent("success")]
            assert paths == ["memory:///listed/a.txt", "memory:///listed/b/c.txt"]
    finally:
        memory.rm("/listed", recursive=True)


@pytest.mark.parametrize(
    ("folder", "message"),
    [("nosuch://bucket/x", "cannot be opened"), ("", "invalid path"), ("a\0b", "invalid path")],
)
def test_what_is_no_folder_is_refused_at_the_start(folder: str, message: str) -> None:
    runner = ProcessorRunner(ListFiles, {"folder": folder})
    try:
        with pytest.raises(Exception, match=message):
            runner.start()
    finally:
        runner.close()


def test_options_are_never_shown() -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        ListFiles.configured({"folder": "/x", "options": "secret"})
    assert "secret" not in str(raised.value)
    assert "sensitive" in str(raised.value)


# -- what was taken


def found(place: str, modified_ms: int | None, size: int = 1) -> FoundFile:
    return FoundFile(place, "", place, size, modified_ms)


FILES = st.lists(
    st.builds(found, st.text("abc", max_size=2), st.integers(0, 5), st.integers(0, 2)),
    max_size=20,
    unique_by=lambda f: f.place,
)


@given(st.lists(st.tuples(FILES, st.integers(1, 20)), max_size=6))
def test_files_are_taken_once_whatever_comes_and_goes(
    rounds: list[tuple[list[FoundFile], int]],
) -> None:
    state: dict[str, str] = {}
    model: set[FoundFile] = set()
    for present, batch in rounds:
        taken = SeenFiles(TrackingMode.FILES, "f", state)
        new = [one for one in present if taken.is_new(one)]
        model &= set(present)
        assert set(new) == set(present) - model
        taken.keep_only([one for one in present if not taken.is_new(one)])
        taken.add(new[:batch])
        model |= set(new[:batch])
        state = taken.state()
        assert len(state["taken"]) == len(model) * DIGEST_CHARS


@given(FILES, st.integers(1, 20))
def test_by_times_nothing_is_taken_twice_and_all_of_one_listing_once(
    present: list[FoundFile], batch: int
) -> None:
    state: dict[str, str] = {}
    done: list[FoundFile] = []
    while True:
        taken = SeenFiles(TrackingMode.TIMES, "f", state)
        new = sorted(
            (f for f in present if taken.is_new(f)), key=lambda f: (f.modified_ms, f.place)
        )
        if not new:
            break
        taken.add(new[:batch])
        done += new[:batch]
        state = taken.state()
    assert len(done) == len(present)
    assert set(done) == set(present)


def test_more_than_can_be_remembered_is_refused() -> None:
    taken = SeenFiles(TrackingMode.FILES, "f", {})
    with pytest.raises(Conflict, match="track by times"):
        taken.add(found(str(number), 1) for number in range(TAKEN_MAX + 1))
    assert taken.state()["taken"] == ""


# -- GetFile


def test_a_file_is_taken_and_its_source_deleted(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"first")
    put(tmp_path / "empty", b"")
    with ProcessorRunner(GetFile, {"folder": str(tmp_path)}) as runner:
        runner.run_until_idle()
        assert [sent.content for sent in runner.sent("success")] == [b"first", b""]
        assert list(tmp_path.iterdir()) == []
        assert runner.durable_commits == 1


def test_a_source_is_kept_until_its_flowfile_is_durable(tmp_path: Path) -> None:
    source = put(tmp_path / "a.txt")
    with ProcessorRunner(GetFile, {"folder": str(tmp_path)}) as runner:

        def full() -> None:
            assert source.exists()
            raise Unavailable("full")

        runner.before_commit(full)
        with pytest.raises(Unavailable):
            runner.run()
        assert source.exists()
        runner.before_commit(lambda: None)
        runner.run_until_idle()
        assert runner.counts() == {"success": 1}
        assert not source.exists()


def test_a_crash_between_commit_and_deletion_doubles_nothing(tmp_path: Path) -> None:
    source = put(tmp_path / "a.txt", b"once")
    with ProcessorRunner(GetFile, {"folder": str(tmp_path)}) as runner:
        runner.run()
        put(source, b"once")  # as if it had not been deleted
        runner.restart()
        runner.run_until_idle()
        assert runner.counts() == {"success": 1}
        assert not source.exists()
        put(source, b"more")
        os.utime(source, (START_S - 50, START_S - 50))
        runner.run_until_idle()
        assert runner.counts() == {"success": 2}


def test_sources_may_be_kept(tmp_path: Path) -> None:
    put(tmp_path / "a.txt")
    with ProcessorRunner(GetFile, {"folder": str(tmp_path), "keep_source": True}) as runner:
        runner.run_until_idle()
        runner.restart()
        runner.run_until_idle()
        assert runner.counts() == {"success": 1}
        assert (tmp_path / "a.txt").exists()


def test_times_and_deleting_do_not_go_together() -> None:
    [problem] = GetFile.problems({"folder": "/x", "tracking": "times"})
    assert problem.place == "tracking"


def test_a_file_that_goes_meanwhile_is_no_failure(tmp_path: Path) -> None:
    put(tmp_path / "1")
    second = put(tmp_path / "2")
    with ProcessorRunner(GetFile, {"folder": str(tmp_path), "batch_size": 1}) as runner:
        runner.run()
        second.unlink()
        runner.run_until_idle()
        assert runner.counts() == {"success": 1}


# -- FetchFile


def test_the_named_file_is_read(tmp_path: Path) -> None:
    source = put(tmp_path / "a.txt", b"content" * 300_000)
    with ProcessorRunner(FetchFile) as runner:
        runner.enqueue(b"old", {"file.path": str(source)})
        runner.run()
        assert runner.sent("success")[0].content == b"content" * 300_000
        assert source.exists()


@pytest.mark.parametrize("completion", ["delete", "move"])
def test_the_source_goes_when_its_flowfile_is_durable(tmp_path: Path, completion: str) -> None:
    source = put(tmp_path / "a.txt", b"content")
    properties = {"completion": completion, "move_to": str(tmp_path / "done/${day}")}
    with ProcessorRunner(FetchFile, properties) as runner:
        runner.enqueue(b"", {"file.path": str(source), "day": "1"})
        runner.run()
        assert runner.durable_commits == 1
        assert not source.exists()
        assert (tmp_path / "done/1/a.txt").exists() is (completion == "move")


def test_moving_needs_a_folder() -> None:
    assert [problem.place for problem in FetchFile.problems({"completion": "move"})] == ["move_to"]


@pytest.mark.parametrize(
    ("where", "relationship"),
    [("no.txt", "not.found"), ("", "failure"), ("folder", "failure"), ("s9://x/y", "failure")],
)
def test_each_failure_has_its_way(tmp_path: Path, where: str, relationship: str) -> None:
    (tmp_path / "folder").mkdir()
    with ProcessorRunner(FetchFile) as runner:
        path = str(tmp_path / where) if where and "://" not in where else where
        runner.enqueue(b"kept", {"file.path": path})
        runner.run()
        [sent] = runner.sent(relationship)
        assert sent.content == b"kept"
        assert sent.attributes["error.reason"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_right_to_read(tmp_path: Path) -> None:
    source = put(tmp_path / "a")
    source.chmod(0)
    with ProcessorRunner(FetchFile) as runner:
        runner.enqueue(b"", {"file.path": str(source)})
        runner.run()
        assert runner.counts() == {"permission.denied": 1}


def test_writing_behind_a_url_is_whole_or_not_at_all() -> None:
    memory = fsspec.filesystem("memory")
    place = open_folder("memory://written/a.txt")
    try:
        place.write(iter([b"ab", b"c"]), "/written/.a.part")
        assert memory.cat("/written/a.txt") == b"abc"

        def broken() -> object:
            yield b"x"
            raise OSError(5, "input/output error")

        with pytest.raises(Unavailable, match="cannot write"):
            place.write(broken(), "/written/.a.part")  # type: ignore[arg-type]
        assert memory.cat("/written/a.txt") == b"abc"
    finally:
        memory.rm("/written", recursive=True)


def test_files_behind_a_url_are_taken_and_deleted_too() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/taken/a/b.txt", b"abc")
    try:
        properties = {"folder": "memory://taken", "minimum_age": "0 sec"}
        with ProcessorRunner(GetFile, properties) as runner:
            runner.advance(100 * 365 * 86_400_000)
            runner.run_until_idle()
            [sent] = runner.sent("success")
            assert sent.content == b"abc"
            assert sent.attributes["path"] == "a/"
            assert memory.find("/taken") == []
        memory.pipe("/taken/c.txt", b"abcd")
        with ProcessorRunner(FetchFile, {"completion": "delete"}) as runner:
            runner.enqueue(b"", {"file.path": "memory:///taken/c.txt"})
            runner.run()
            assert runner.sent("success")[0].content == b"abcd"
            assert memory.find("/taken") == []
    finally:
        memory.store.clear()


def test_a_file_whose_store_has_no_library_here_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The FlowFile stayed in the queue, because the session was rolled back each time."""

    def no_library(_url: str) -> NoReturn:
        raise OSError("Unable to load libhdfs")

    monkeypatch.setattr(folders.fsspec.core, "url_to_fs", no_library)
    with ProcessorRunner(FetchFile, {"file": "${file.path}"}) as runner:
        runner.enqueue(b"", {"file.path": "hdfs://x/y"})
        runner.run()
        [failed] = runner.sent("failure")
    assert "libraries for hdfs://" in failed.attributes["error.reason"]


@pytest.mark.parametrize(
    ("place", "step"), [(MemoryFileSystem, "info"), (folders.fsspec.core, "url_to_fs")]
)
@pytest.mark.parametrize("package", ["botocore.exceptions", "paramiko.ssh_exception"])
def test_a_file_of_a_store_that_raises_errors_of_its_own_fails(
    monkeypatch: pytest.MonkeyPatch, place: object, step: str, package: str
) -> None:
    no_credentials = type("NoCredentialsError", (Exception,), {"__module__": package})

    def refuse(*_: object) -> NoReturn:
        raise no_credentials

    monkeypatch.setattr(place, step, refuse)
    with ProcessorRunner(FetchFile, {"file": "${file.path}"}) as runner:
        runner.enqueue(b"", {"file.path": "memory://a/b"})
        runner.run()
        [failed] = runner.sent("failure")
    assert "NoCredentialsError" in failed.attributes["error.reason"]
