"""TailFile: growth, rotation, truncation, restarts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.processors.files.tail_file import TailFile
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileStat
from penstock.testing.flow import ProcessorRunner


class Log:
    """A log and its time, which moves by a second with each change."""

    def __init__(self, folder: Path, runner: ProcessorRunner[TailFile]) -> None:
        self.path = folder / "app.log"
        self.runner = runner

    def add(self, data: bytes, path: Path | None = None) -> None:
        target = path or self.path
        with target.open("ab") as file:
            file.write(data)
        self.touch(target)

    def touch(self, path: Path) -> None:
        self.runner.advance(1_000)
        now_s = self.runner.context.clock.now_ms() / 1000
        os.utime(path, (now_s, now_s))

    def rename(self) -> Path:
        self._make_room()
        return self.path.rename(f"{self.path}.1")

    def copy_and_cut(self) -> None:
        self._make_room()
        shutil.copyfile(self.path, f"{self.path}.1")
        self.touch(Path(f"{self.path}.1"))
        os.truncate(self.path, 0)
        self.touch(self.path)

    def _make_room(self) -> None:
        for number in range(8, 0, -1):
            older = Path(f"{self.path}.{number}")
            if older.exists():
                older.rename(f"{self.path}.{number + 1}")

    def taken(self) -> bytes:
        self.runner.run_until_idle()
        return b"".join(sent.content for sent in self.runner.sent("success"))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with ProcessorRunner(TailFile, {"file": str(tmp_path / "app.log")}) as runner:
        yield Log(tmp_path, runner)


def test_whole_lines_are_taken_as_they_come(log: Log) -> None:
    assert log.taken() == b""  # it is not there yet
    log.add(b"one\ntwo\nthr")
    assert log.taken() == b"one\ntwo\n"
    assert log.taken() == b"one\ntwo\n"
    log.add(b"ee\n")
    log.runner.restart()
    assert log.taken() == b"one\ntwo\nthree\n"
    last = log.runner.sent("success")[-1].attributes
    assert last["filename"] == "app.8-14.log"
    assert (last["tailfile.start"], last["tailfile.end"]) == ("8", "14")
    assert last["tailfile.original.path"] == str(log.path)


def test_it_may_begin_at_the_end(tmp_path: Path) -> None:
    with ProcessorRunner(
        TailFile, {"file": str(tmp_path / "app.log"), "start_at": "end"}
    ) as runner:
        log = Log(tmp_path, runner)
        log.add(b"before\n")
        assert log.taken() == b""
        log.add(b"after\n")
        assert log.taken() == b"after\n"


def test_what_is_large_comes_in_parts_and_a_long_line_is_cut(tmp_path: Path) -> None:
    properties = {"file": str(tmp_path / "app.log"), "maximum_size": "10 B"}
    with ProcessorRunner(TailFile, properties) as runner:
        log = Log(tmp_path, runner)
        log.add(b"1\n22\n333\n4444\n" + b"x" * 25 + b"\n\0\xff\n")
        assert log.taken() == b"1\n22\n333\n4444\n" + b"x" * 25 + b"\n\0\xff\n"
        contents = [sent.content for sent in runner.sent("success")]
        assert contents[:3] == [b"1\n22\n333\n", b"4444\n", b"x" * 10]


def test_a_renamed_file_is_read_to_its_end_then_the_new_one(log: Log) -> None:
    log.add(b"one\n")
    assert log.taken() == b"one\n"
    log.add(b"two\nlast without end")
    log.rename()
    log.add(b"three\n")
    log.runner.advance(5_000)
    assert log.taken() == b"one\ntwo\nlast without endthree\n"


def test_a_renamed_file_may_grow_for_a_moment(log: Log) -> None:
    log.add(b"one\n")
    log.taken()
    old = log.rename()
    assert log.taken() == b"one\n"  # there is no new one yet
    log.add(b"late", old)
    log.add(b"new\n")
    log.add(b"r\n", old)
    assert log.taken() == b"one\nlater\n"
    log.runner.advance(5_000)
    assert log.taken() == b"one\nlater\nnew\n"


def test_a_pipe_with_the_name_of_a_rotated_file_is_skipped(log: Log) -> None:
    os.mkfifo(f"{log.path}.9")
    log.add(b"one\n")
    assert log.taken() == b"one\n"
    log.runner.restart()
    log.rename()
    log.add(b"two\n")
    assert log.taken() == b"one\ntwo\n"


def test_several_rotations_while_it_was_stopped(log: Log) -> None:
    log.add(b"1\n")
    log.taken()
    log.runner.stop()
    for number in range(2, 6):
        log.add(f"{number}\n".encode())
        log.rename()
        log.add(f"{number} begins\n".encode())
    log.runner.advance(5_000)
    log.runner.restart()
    expected = b"1\n2\n2 begins\n3\n3 begins\n4\n4 begins\n5\n5 begins\n"
    assert log.taken() == expected


def test_a_copy_is_read_to_its_end_then_the_truncated_file(log: Log) -> None:
    log.add(b"one\n")
    log.taken()
    log.add(b"two\n")
    log.copy_and_cut()
    log.add(b"three\n")
    log.runner.advance(5_000)
    assert log.taken() == b"one\ntwo\nthree\n"
    log.add(b"four\n")
    assert log.taken() == b"one\ntwo\nthree\nfour\n"


def test_what_was_truncated_is_begun_anew(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.add(b"one\ntwo\n")
    log.taken()
    os.truncate(log.path, 0)
    log.add(b"x\n")
    assert log.taken() == b"one\ntwo\nx\n"
    assert log.runner.statistics.counters == {"lost": 1}
    assert "truncated or replaced" in caplog.text


def test_another_file_of_the_same_length_is_known_as_another(log: Log) -> None:
    log.add(b"one\n")
    log.taken()
    log.path.write_bytes(b"two\n")
    log.touch(log.path)
    assert log.taken() == b"one\ntwo\n"


def test_another_file_name_begins_anew(log: Log, tmp_path: Path) -> None:
    log.add(b"one\n")
    log.taken()
    log.add(b"other\n", tmp_path / "other.log")
    log.runner.restart({"file": str(tmp_path / "other.log")})
    assert log.taken() == b"one\nother\n"


def test_compressed_files_are_left_alone(log: Log, tmp_path: Path) -> None:
    log.add(b"one\n")
    log.taken()
    log.rename().unlink()
    log.add(b"\x1f\x8b", tmp_path / "app.log.1.gz")
    log.add(b"two\n")
    assert log.taken() == b"one\ntwo\n"


@pytest.mark.parametrize("look", [1, 2, 3])
def test_a_rotation_while_it_is_read_takes_nothing_wrong(tmp_path: Path, look: int) -> None:
    class Rotating(OsFileSystem):
        """Rotates the log between two looks."""

        looks = 100

        def stat(self, path: str) -> FileStat:
            found = super().stat(path)
            self.looks += 1
            if self.looks == 0:
                log.rename()
                log.add(b"new that is longer than the old\n" * 5)
            return found

    fs = Rotating()
    with ProcessorRunner(TailFile, {"file": str(tmp_path / "app.log")}, fs=fs) as runner:
        log = Log(tmp_path, runner)
        log.add(b"one\n")
        assert log.taken() == b"one\n"
        log.add(b"two\n")
        fs.looks = -look
        log.taken()
        runner.advance(5_000)
        assert log.taken() == b"one\ntwo\n" + b"new that is longer than the old\n" * 5


@given(
    st.lists(
        st.one_of(st.binary(min_size=1, max_size=30), st.sampled_from(["rename", "cut", "take"])),
        max_size=15,
    )
)
def test_each_byte_is_taken_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[bytes | str]
) -> None:
    folder = tmp_path_factory.mktemp("tail")
    properties = {"file": str(folder / "app.log"), "maximum_size": "16 B"}
    with ProcessorRunner(TailFile, properties) as runner:
        log = Log(folder, runner)
        written = b""
        for number, step in enumerate(steps):
            if isinstance(step, bytes):
                # Beginnings differ, as they do where each line has a time.
                data = f"{number} ".encode() + step + b"\n"
                log.add(data)
                written += data
                log.taken()
            elif step == "take":
                runner.restart()
            elif log.path.exists() and log.path.stat().st_size:
                if step == "rename":
                    log.rename()
                else:
                    log.copy_and_cut()
                    runner.advance(5_000)
        log.add(b"end\n")
        runner.advance(5_000)
        assert log.taken() == written + b"end\n"
