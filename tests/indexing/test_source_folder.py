"""A folder of growing files as a stream."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Condition
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest, NotFound
from penstock.indexing.engine import FileRange
from penstock.indexing.source import FolderSupplier, folder
from penstock.indexing.stream_location import StreamLocation
from penstock.storage.disk import OsFileSystem, OsReadFile
from penstock.storage.disk_errors import translate_error
from penstock.storage.filesystem import FileStat
from penstock.testing.clock import VirtualClock
from tests.harness.engine_kit import read_rows, read_stream
from tests.indexing.indexing_kit import OneTask, event, spec_json
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, until


def supplier(folder: Path, pattern: str = "*.log") -> FolderSupplier:
    return FolderSupplier(OsFileSystem(), VirtualClock(), str(folder), pattern)


def lines(ranges: Sequence[FileRange] | tuple[FileRange, ...]) -> list[tuple[int, int, bytes]]:
    return [(r.partition, offset, line) for r in ranges for offset, line in read_stream(r)]


def everything(source: FolderSupplier) -> list[tuple[int, int, bytes]]:
    seen = source.available()
    ends = {p: a.latest for p, a in seen.partitions.items()}
    return lines(source.ranges(dict.fromkeys(ends, 0), ends, seen))


def _has_passed(sim: Simulation, time_s: float) -> bool:
    return sim.clock.monotonic_s() > time_s


def _let_pass(clock: VirtualClock, _condition: Condition, timeout_s: float | None) -> bool:
    assert timeout_s is not None
    clock.advance(timeout_s)
    return False


def test_whole_lines_only(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    source = supplier(tmp_path)
    file.write_bytes(b"one\ntw")
    (partition,) = source.available().partitions
    assert source.available().partitions[partition].latest == 1
    with file.open("ab") as out:
        out.write(b"o\nthree\n")
    seen = source.available()
    assert seen.partitions[partition].latest == 3
    (found,) = source.ranges({partition: 1}, {partition: 3}, seen)
    assert found == FileRange(partition, str(file), 1, 3, 4, 14)
    assert lines([found]) == [(partition, 1, b"two"), (partition, 2, b"three")]


def test_a_file_without_a_whole_line_is_not_there_yet(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"on")
    (tmp_path / "other.txt").write_bytes(b"no\n")
    assert supplier(tmp_path).available().partitions == {}


def test_a_pipe_is_skipped_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.log").write_bytes(b"one\n")
    os.mkfifo(tmp_path / "b.log")
    (tmp_path / "c.log").write_bytes(b"two\n")
    (tmp_path / "d.log").symlink_to("/dev/zero")
    source = supplier(tmp_path)
    for _ in range(2):
        assert sorted(line for _, _, line in everything(source)) == [b"one", b"two"]
    assert [one.split(":")[0] for one in caplog.messages] == [
        f"'{tmp_path}/b.log' is skipped",
        f"'{tmp_path}/d.log' is skipped",
    ]


class Counting(OsFileSystem):
    """Counts the bytes of files that are read, and the listings of folders."""

    def __init__(self) -> None:
        self.bytes = 0
        self.listings = 0

    def listdir(self, path: str) -> list[str]:
        self.listings += 1
        return super().listdir(path)

    def open_read(self, path: str) -> OsReadFile:
        file = super().open_read(path)
        pread = file.pread

        def counted(size: int, position: int) -> bytes:
            data = pread(size, position)
            self.bytes += len(data)
            return data

        class File:
            def __init__(self) -> None:
                self.pread = counted
                self.close = file.close
                self.check_readable = file.check_readable

        return cast("OsReadFile", File())


NAMES = ["a\nb.log", "-rf.log", " .log", "*.log", "%41.log", "a#b?.log", "\x1b[31m.log", "[a].log"]


def test_a_file_of_any_name_is_read_and_others_than_unicode_are_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [*NAMES, "n" * 251 + ".log"]:
        (tmp_path / name).write_bytes(f"{name!r}\n".encode())
    path = os.fsencode(tmp_path) + b"/\xff.log"
    with open(path, "wb") as file:  # noqa: PTH123 - a name of bytes
        file.write(b"lost\n")
    source = supplier(tmp_path)
    for _ in range(2):
        found = {line for _, _, line in everything(source)}
        assert found == {repr(name).encode() for name in [*NAMES, "n" * 251 + ".log"]}
    (warning,) = caplog.messages
    assert "its name is not valid UTF-8; rename or remove it" in warning
    assert warning.isascii()


def test_links_are_followed_and_of_two_names_of_one_file_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"one\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link.log").symlink_to(tmp_path / "outside")
    (tmp_path / "in/dangling.log").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in/folder.log").symlink_to(tmp_path)
    source = supplier(tmp_path / "in")
    assert [line for _, _, line in everything(source)] == [b"one"]
    (tmp_path / "in/other.log").symlink_to(tmp_path / "outside")
    assert [line for _, _, line in everything(source)] == [b"one"]
    assert source.available().skipped == {
        f"{tmp_path}/in/dangling.log": "it is listed but does not exist, like a link whose target"
        " is missing",
        f"{tmp_path}/in/other.log": f"it is another name of {tmp_path}/in/link.log, as a hard link"
        " is",
    }


def test_files_are_read_once_at_the_start_whatever_is_skipped(
    tmp_path: Path, forbidden: set[object]
) -> None:
    size = 100_000
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(b"x" * (size - 1) + b"\n")
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "no.log").write_bytes(b"no\n")
    forbidden.add(f"{tmp_path}/no.log")
    fs = Counting()
    assert len(lines_of(FolderSupplier(fs, VirtualClock(), str(tmp_path), "*.log"))) == 2
    assert fs.listings == 1
    assert 2 * size <= fs.bytes < 3 * size
    # New links make further looks necessary, which read on.
    (tmp_path / "c.log").hardlink_to(tmp_path / "a.log")
    (tmp_path / "dangling.log").symlink_to(tmp_path / "nowhere")
    fs = Counting()
    source = FolderSupplier(fs, VirtualClock(), str(tmp_path), "*.log")
    assert len(lines_of(source)) == 2
    assert 1 < fs.listings <= 5
    assert 2 * size <= fs.bytes < 3 * size
    fs.listings = 0
    assert len(source.available().skipped) == 4
    assert fs.listings == 1  # The links are known.


def test_a_truncated_file_is_counted_anew_in_each_look(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n" * 10)
    source = supplier(tmp_path)
    assert lines_of(source) == [10]
    path.write_bytes(b"one\n" * 3)
    (tmp_path / "b.log").hardlink_to(path)
    assert lines_of(source) == [3]


def test_of_two_hard_links_the_one_that_was_read_is_read_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "m.log").write_bytes(b"one\n")
    (tmp_path / "z.log").write_bytes(b"two\n")
    source = supplier(tmp_path)
    before = source.available()
    assert before.skipped == {}
    (tmp_path / "a.log").hardlink_to(tmp_path / "m.log")
    for _ in range(2):
        assert source.available().partitions == before.partitions
        assert sorted(line for _, _, line in everything(source)) == [b"one", b"two"]
        assert list(source.available().skipped) == [f"{tmp_path}/a.log"]
    assert len(caplog.messages) == 1
    (tmp_path / "m.log").unlink()  # Another name of it is left, as after a rename.
    seen = source.available()
    assert seen.partitions.keys() == before.partitions.keys()
    assert seen.skipped == {}


def test_two_files_with_one_partition_by_chance_are_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_PARTITIONS", 1)
    source = supplier(tmp_path)
    (tmp_path / "a.log").write_bytes(b"one\ntwo\n")
    before = source.available()
    (tmp_path / "b.log").write_bytes(b"three\nfour\nfive\n")
    for _ in range(2):
        with pytest.raises(
            InvalidRequest, match=r"b\.log and .*a\.log .* by chance: copy .*b\.log"
        ):
            source.available()
    # Also when the first is gone: the other must not go on at its offset.
    (tmp_path / "a.log").unlink()
    with pytest.raises(InvalidRequest, match="by chance"):
        source.available()
    (tmp_path / "b.log").unlink()
    assert before.partitions.keys().isdisjoint(source.available().partitions)


def test_a_file_that_is_renamed_before_its_lines_are_asked_for_is_found_again(
    tmp_path: Path,
) -> None:
    source = supplier(tmp_path)
    (tmp_path / "a.log").write_bytes(b"one\ntwo\n")
    seen = source.available()
    (partition,) = seen.partitions
    (tmp_path / "a.log").rename(tmp_path / "b.log")
    (found,) = source.ranges({partition: 0}, {partition: 2}, seen)
    assert (found.path, found.start, found.end) == (f"{tmp_path}/b.log", 0, 2)


def test_a_file_that_is_replaced_while_its_first_line_is_read_has_no_partition_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"one\n")
    open_read = OsFileSystem.open_read
    rotations = iter([True])

    def rotated(self: OsFileSystem, path: str) -> OsReadFile:
        if path == str(file) and next(rotations, False):
            file.rename(tmp_path / "a1.log")
            file.write_bytes(b"two\n")
        return open_read(self, path)

    monkeypatch.setattr(OsFileSystem, "open_read", rotated)
    source = supplier(tmp_path)
    seen = source.available()
    assert sorted(line for _, _, line in everything(source)) == [b"one", b"two"]
    assert supplier(tmp_path).available().partitions.keys() == seen.partitions.keys()


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths that may not be opened: tests may run as a user who may open every file."""
    paths: set[str] = set()
    open_read = OsFileSystem.open_read

    def refused(self: OsFileSystem, path: str) -> OsReadFile:
        if path in paths:
            raise translate_error(PermissionError(errno.EACCES, "denied"), path, "open")
        return open_read(self, path)

    monkeypatch.setattr(OsFileSystem, "open_read", refused)
    return paths


def test_a_file_without_permission_is_skipped_until_it_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, forbidden: set[object]
) -> None:
    (tmp_path / "a.log").write_bytes(b"one\n")
    (tmp_path / "b.log").write_bytes(b"two\n")
    path = f"{tmp_path}/a.log"
    forbidden.add(path)
    source = supplier(tmp_path)
    for _ in range(2):
        assert [line for _, _, line in everything(source)] == [b"two"]
    assert source.available().skipped == {
        path: f"{path}: cannot open: permission denied; grant this user access"
    }
    assert len(caplog.messages) == 1
    forbidden.clear()
    assert sorted(line for _, _, line in everything(source)) == [b"one", b"two"]
    assert source.available().skipped == {}


def test_a_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_self: object, path: str) -> None:
        raise translate_error(PermissionError(errno.EACCES, "denied"), path, "list")

    monkeypatch.setattr(OsFileSystem, "listdir", refused)
    with pytest.raises(InvalidRequest, match="permission denied"):
        supplier(tmp_path).available()


def test_a_file_that_grows_while_it_is_read_is_read_to_the_size_that_was_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"one\n")
    reads = 0
    pread = OsReadFile.pread

    def growing(self: OsReadFile, size: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 10
        with file.open("ab") as out:
            out.write(b"x\n" * 10)
        return pread(self, size, offset)

    source = supplier(tmp_path)
    monkeypatch.setattr(OsReadFile, "pread", growing)
    (seen,) = source.available().partitions.values()
    assert seen.latest >= 1


def test_a_file_that_became_a_folder_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"one\n")
    source = supplier(tmp_path)
    (partition,) = source.available().partitions
    file.unlink()
    file.mkdir()
    (file / "b.log").write_bytes(b"two\n")
    assert source.available().partitions == {}
    assert source.available(after={partition: 1}).partitions[partition].latest == 1


def test_a_line_without_end_is_read_once_not_at_each_look(tmp_path: Path) -> None:
    fs = Counting()
    source = FolderSupplier(fs, VirtualClock(), str(tmp_path), "*.log")
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n" + b"x" * 100_000)
    assert lines_of(source) == [1]
    fs.bytes = 0
    for _ in range(5):
        assert lines_of(source) == [1]
    assert fs.bytes < 10_000
    path.write_bytes(b"one\n" + b"y" * 50_000 + b"\nthree\n")  # cut, and written once more
    assert lines_of(source) == [3]


def lines_of(source: FolderSupplier) -> list[int]:
    return [found.latest for found in source.available().partitions.values()]


def test_a_rotated_file_keeps_its_partition_and_the_new_one_has_its_own(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    source = supplier(tmp_path, "a.log*")
    file.write_bytes(b"one\n")
    (old,) = source.available().partitions
    file.rename(tmp_path / "a.log.1")
    file.write_bytes(b"two\n")
    seen = source.available()
    assert seen.partitions[old].folder.endswith("a.log.1")
    assert len(seen.partitions) == 2
    assert sorted(line for _, _, line in everything(source)) == [b"one", b"two"]
    # Another process finds the same partitions.
    assert supplier(tmp_path, "a.log*").available().partitions.keys() == seen.partitions.keys()


class Rotating(OsFileSystem):
    """Renames files once, in the middle of somebody's look at a folder."""

    def __init__(self, before: str, renames: list[Any]) -> None:
        self.before = before
        self.renames = renames

    def stat(self, path: str) -> FileStat:
        if path.endswith(self.before):
            while self.renames:
                old, new = self.renames.pop(0)
                old.rename(new)
        return super().stat(path)


@pytest.mark.parametrize("before", ["a.log", "a.log.1"])
def test_files_that_are_rotated_while_they_are_looked_at_are_all_there(
    tmp_path: Path, before: str
) -> None:
    first, second, third = (tmp_path / name for name in ("a.log", "a.log.1", "a.log.2"))
    first.write_bytes(b"new\n")
    second.write_bytes(b"old\n")
    fs = Rotating(before, [])
    source = FolderSupplier(fs, VirtualClock(), str(tmp_path), "a.log*")
    partitions = source.available().partitions.keys()
    fs.renames += [(second, third), (first, second)]
    assert source.available().partitions.keys() == partitions
    assert not first.exists()


def test_a_deleted_file_is_gone_and_a_cut_one_is_shorter(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(f"{name}\nmore\n".encode())
    source = supplier(tmp_path)
    assert sum(a.latest for a in source.available().partitions.values()) == 4
    (tmp_path / "a.log").unlink()
    with (tmp_path / "b.log").open("r+b") as out:
        out.truncate(len(b"b.log\n"))
    assert [a.latest for a in source.available().partitions.values()] == [1]


def test_so_many_deleted_files_are_remembered_and_what_is_asked_for_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_GONE_FILES_MAX", 3)
    source = supplier(tmp_path)
    gone: list[int] = []
    for number in range(6):
        file = tmp_path / f"{number}.log"
        file.write_bytes(f"{number}\n".encode())
        gone += source.available().partitions
        file.unlink()
        asked = source.available(after={gone[0]: 1}).partitions
        assert asked[gone[0]].latest == 1
    found = source.available(after=dict.fromkeys(gone, 1)).partitions
    assert sorted(found) == sorted([gone[0], *gone[-2:]])


def test_news_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"one\n")
    clock = VirtualClock()
    source = FolderSupplier(OsFileSystem(), clock, str(tmp_path))
    (partition,) = source.available().partitions
    clock.wait = partial(_let_pass, clock)  # type: ignore[method-assign]
    began = clock.monotonic_s()
    source.available(after={partition: 1}, wait_ms=1000)
    assert clock.monotonic_s() - began == pytest.approx(1.0)
    began = clock.monotonic_s()
    source.available(after={partition: 0}, wait_ms=1000)
    assert clock.monotonic_s() == began


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        supplier(tmp_path / "gone").available()


@given(st.data())
def test_any_cut_of_the_bytes_gives_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = Path(tmp_path_factory.mktemp("folder"))
    texts = data.draw(
        st.lists(
            st.binary(max_size=6).filter(lambda t: b"\n" not in t and b"\r" not in t),
            min_size=1,
            max_size=12,
        )
    )
    whole = b"first\n" + b"".join(text + b"\n" for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(6, len(whole)), max_size=4)))
    source = supplier(folder)
    with (folder / "a.log").open("ab", buffering=0) as out:
        for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            out.write(whole[begin:end])
            source.available()
    seen = source.available()
    (partition,) = seen.partitions
    assert seen.partitions[partition].latest == len(texts) + 1
    start = data.draw(st.integers(0, len(texts)))
    (found,) = source.ranges({partition: start}, {partition: len(texts) + 1}, seen)
    data_read = whole[found.start_position : found.end_position]
    assert data_read == b"".join(t + b"\n" for t in [b"first", *texts][start:])


def test_a_task_reads_a_folder_and_publishes_each_line_once(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_bytes(b"".join(event(n) + b"\n" for n in range(5)))
    (partition,) = supplier(folder).available().partitions
    place = StreamLocation(type="folder", name=str(folder), pattern="*.log")
    world = OneTask(tmp_path, place=place, topic=str(folder), start_offsets={partition: 0})
    world.engine.read = read_stream
    world.run(lambda: world.announced() == [0, 1, 2, 3, 4])
    (folder / "a.log").rename(folder / "old.log")
    with (folder / "old.log").open("ab") as out:
        out.write(event(5) + b"\n")
    (folder / "a.log").write_bytes(event(6) + b"\n")
    world.run(lambda: world.announced() == [0, 1, 2, 3, 4, 5])
    world.metadata.close()


@pytest.fixture
def reading(make: Callable[..., Simulation], tmp_path: Path) -> tuple[Simulation, Path]:
    """A simulation whose supervisor `logs` reads a folder, and the folder."""
    folder = tmp_path / "logs"
    folder.mkdir()
    sim = make()
    sim.broker.read = read_stream  # type: ignore[method-assign]
    # Who waits for news lets time pass.
    sim.clock.wait = partial(_let_pass, sim.clock)  # type: ignore[method-assign]
    spec = spec_json()
    spec["type"] = "folder"
    spec["spec"]["dataSchema"]["dataSource"] = "logs"
    spec["spec"]["ioConfig"] |= {"type": "folder", "baseDir": str(folder), "filter": "*.log"}
    spec["spec"]["ioConfig"]["taskDuration"] = "PT1H"
    del spec["spec"]["ioConfig"]["topic"]
    ask(sim, sim.overlord.supervisor_service.submit(spec))
    return sim, folder


def write(folder: Path, name: str, numbers: Sequence[int] | range) -> None:
    (folder / name).write_bytes(b"".join(event(n) + b"\n" for n in numbers))


def announced(sim: Simulation) -> list[int]:
    rows = sim.metadata.snapshot("logs")
    return sorted(n for r in rows.announced for n in _numbers(r.file.path))


def test_a_supervisor_reads_files_that_come_and_grow(reading: tuple[Simulation, Path]) -> None:
    sim, folder = reading
    write(folder, "a.log", range(4))
    until(sim, lambda: announced(sim) == [0, 1, 2, 3])
    write(folder, "b.log", range(4, 6))
    until(sim, lambda: sim.metadata.counts("logs").processed == 4, seconds=200)
    until(sim, lambda: announced(sim) == [4, 5])


def test_many_new_files_end_a_group_once_not_one_by_one(reading: tuple[Simulation, Path]) -> None:
    sim, folder = reading
    write(folder, "first.log", [0])
    until(sim, lambda: announced(sim) == [0])
    for n in range(1, 9):
        write(folder, f"{n}.log", [n])
        began_s = sim.clock.monotonic_s()
        until(sim, partial(_has_passed, sim, began_s + 10))
        assert sim.metadata.counts("logs").processed == 0  # it was not published yet
    until(sim, lambda: announced(sim) == list(range(1, 9)), seconds=200)
    assert sim.metadata.counts("logs").processed == 1


def test_a_file_that_is_deleted_after_it_was_read_changes_nothing(
    reading: tuple[Simulation, Path],
) -> None:
    sim, folder = reading
    write(folder, "a.log", range(2))
    write(folder, "b.log", range(2, 4))
    until(sim, lambda: announced(sim) == [0, 1, 2, 3])
    before = ids_of_tasks(sim)
    (folder / "a.log").unlink()
    with (folder / "b.log").open("ab") as out:
        out.write(event(4) + b"\n")
    until(sim, lambda: announced(sim) == [0, 1, 2, 3, 4])
    assert ids_of_tasks(sim) == before
    assert complaints(sim) == []


def test_a_file_that_is_deleted_before_it_was_read_is_told_once(
    reading: tuple[Simulation, Path],
) -> None:
    sim, folder = reading
    write(folder, "a.log", [0])
    until(sim, lambda: announced(sim) == [0])
    write(folder, "b.log", range(5, 8))
    began_s = sim.clock.monotonic_s()
    until(sim, lambda: sim.clock.monotonic_s() - began_s > 10)  # it is collected, not read
    (folder / "b.log").unlink()
    write(folder, "c.log", [1])
    until(sim, lambda: 1 in announced(sim), seconds=200)
    (told,) = complaints(sim)
    assert "b.log was deleted" in told
    assert "after offset 0 was read, though it held offsets up to 3" in told


def test_a_file_that_loses_its_permission_is_read_to_its_end_once_it_has_it_again(
    reading: tuple[Simulation, Path], forbidden: set[object]
) -> None:
    sim, folder = reading
    write(folder, "a.log", range(2))
    write(folder, "b.log", range(2, 4))
    until(sim, lambda: announced(sim) == [0, 1, 2, 3])
    forbidden.add(f"{folder}/a.log")
    with (folder / "a.log").open("ab") as out:
        out.write(event(9) + b"\n")
    write(folder, "b.log", range(2, 6))
    until(sim, lambda: announced(sim) == [0, 1, 2, 3, 4, 5])
    shown: Any = ask(sim, sim.overlord.supervisor_service.status("logs"))
    payload: dict[str, Any] = shown["payload"]
    assert payload["healthy"]
    assert payload["skippedFiles"]["count"] == 1
    (file,) = payload["skippedFiles"]["files"]
    assert file["path"] == f"{folder}/a.log"
    assert file["reason"].endswith("permission denied; grant this user access")
    forbidden.clear()
    until(sim, lambda: 9 in announced(sim), seconds=200)
    assert (
        "skippedFiles"
        not in cast("Any", ask(sim, sim.overlord.supervisor_service.status("logs")))["payload"]
    )


def ids_of_tasks(sim: Simulation) -> set[str]:
    found = cast("Any", ask(sim, sim.overlord.supervisor_service.status("logs")))["payload"]
    return {t["id"] for name in ("activeTasks", "publishingTasks") for t in found[name]}


def complaints(sim: Simulation) -> list[str]:
    found = cast("Any", ask(sim, sim.overlord.supervisor_service.status("logs")))["payload"]
    return [error["exceptionMessage"] for error in found["recentErrors"]]


def _numbers(path: str) -> list[int]:
    return [int(str(row["n"])) for row in read_rows(path)] if Path(path).exists() else []
