"""The bytes of a session's FlowFiles: streams, appending, files, and what is let go of."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessSession, SessionMisuse
from penstock.flow.session.content_streams import ContentStream
from penstock.storage.disk import OsFileSystem
from penstock.testing.memory_disk import CrashableFileSystem
from tests.flow.session_kit import SessionWorld


@pytest.fixture
def world() -> SessionWorld:
    return SessionWorld()


def taken(world: SessionWorld, data: bytes) -> tuple[ProcessSession, FlowFile]:
    world.feed("a", data)
    session = world.session()
    [flowfile] = session.get_many(1)
    return session, flowfile


def sent(world: SessionWorld, session: ProcessSession, flowfile: FlowFile) -> list[bytes]:
    session.transfer(flowfile, "success")
    session.commit()
    world.check()
    return world.contents("out")


def broken_off(stream: ContentStream) -> None:
    with stream as out:
        out.write(b"garbage")
        raise RuntimeError


def failing(fs: CrashableFileSystem, stream: ContentStream, data: bytes) -> None:
    with stream as out:
        fs.fail_next("append")
        out.write(data)


def test_a_stream_writes_and_the_flowfile_has_it_at_the_end(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"old")
    with session.write(flowfile) as out:
        assert out.write(b"new ") == 4
        assert out.write(bytearray(b"content")) == 7
        assert out.tell() == 11
    assert session.read_all(flowfile) == b"new content"
    assert session.put_attributes(flowfile, {}).size == 11
    assert sent(world, session, flowfile) == [b"new content"]


def test_an_exception_in_a_stream_leaves_the_flowfile_as_it_was(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"old")
    for open_stream in (session.write, session.append):
        with pytest.raises(RuntimeError):
            broken_off(open_stream(flowfile))
        assert session.read_all(flowfile) == b"old"
    assert sent(world, session, flowfile) == [b"old"]


def test_text_and_lines_go_through_the_streams(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"")
    with io.TextIOWrapper(session.write(flowfile), encoding="utf-8") as out:
        out.write("eins\nzwei\n")
    with session.read(flowfile) as content:
        assert content.readlines() == [b"eins\n", b"zwei\n"]
        content.seek(5)
        assert content.read() == b"zwei\n"
    assert sent(world, session, flowfile) == [b"eins\nzwei\n"]


def test_empty_content_has_no_claim(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"old")
    empty = session.write(flowfile, b"")
    assert (empty.size, empty.claim) == (0, None)
    with session.read(flowfile) as content:
        assert content.read() == b""
    assert sent(world, session, flowfile) == [b""]


def test_what_was_written_over_is_let_go_of(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"old")
    for data in (b"one", b"two", b"three"):
        session.write(flowfile, data)
    assert sent(world, session, flowfile) == [b"three"]
    assert sum(world.references().values()) == 1


def test_appending_adds_and_many_times_is_one_claim(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"0")
    before = world.content.statistics().claims_written
    for number in range(1, 10):
        with session.append(flowfile) as out:
            out.write(b"%d" % number)
        assert session.put_attributes(flowfile, {}).size == number + 1
    assert session.read_all(flowfile) == b"0123456789"
    assert world.content.statistics().claims_written == before + 1
    with session.append(flowfile) as out:
        out.write(b"!")
    assert sent(world, session, flowfile) == [b"0123456789!"]


def test_an_append_that_fails_keeps_what_was_appended_before(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"0")
    with session.append(flowfile) as out:
        out.write(b"1")
    with pytest.raises(RuntimeError):
        broken_off(session.append(flowfile))
    with session.append(flowfile) as out:
        out.write(b"2")
    assert sent(world, session, flowfile) == [b"012"]


def test_appending_to_many_at_once_keeps_few_files_open(world: SessionWorld) -> None:
    world.feed("a", *[b"%d" % number for number in range(30)])
    session = world.session()
    flowfiles = session.get_many(30)
    for _ in range(2):
        for flowfile in flowfiles:
            with session.append(flowfile) as out:
                out.write(b"x")
    session.transfer(flowfiles, "success")
    session.commit()
    assert world.contents("out") == [b"%dxx" % number for number in range(30)]
    world.check()


def test_a_clone_of_what_is_appended_to_has_it_all(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"0")
    with session.append(flowfile) as out:
        out.write(b"1")
    clone = session.clone(flowfile)
    with session.append(flowfile) as out:
        out.write(b"2")
    session.transfer(clone, "success")
    assert sent(world, session, flowfile) == [b"01", b"012"]


def test_a_stream_that_is_left_open_is_named_at_the_commit(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"old")
    out = session.write(flowfile)
    out.write(b"half")
    with pytest.raises(SessionMisuse, match="still being written"):
        session.commit()
    with pytest.raises(ValueError, match="closed"):
        out.write(b"more")
    assert world.contents("a") == [b"old"]
    world.check()


@pytest.mark.parametrize("call", ["write", "append", "data", "clone"])
def test_what_is_being_written_is_not_touched_otherwise(world: SessionWorld, call: str) -> None:
    session, flowfile = taken(world, b"old")
    session.write(flowfile)
    calls = {
        "write": lambda: session.write(flowfile),
        "append": lambda: session.append(flowfile),
        "data": lambda: session.write(flowfile, b"x"),
        "clone": lambda: session.clone(flowfile),
    }
    with pytest.raises(SessionMisuse, match="being written"):
        calls[call]()
    world.check()


def test_streams_that_read_are_closed_at_the_end(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"old")
    content = session.read(flowfile)
    assert sent(world, session, flowfile) == [b"old"]
    with pytest.raises(ValueError, match="closed"):
        content.read()


def test_reading_all_is_bounded(world: SessionWorld) -> None:
    session, flowfile = taken(world, b"12345")
    with pytest.raises(InvalidRequest, match="5 bytes of content, more than the limit of 4"):
        session.read_all(flowfile, max_bytes=4)
    assert sent(world, session, flowfile) == [b"12345"]


def test_files_streams_and_pieces_are_imported_and_exported(tmp_path: Path) -> None:
    world = SessionWorld(fs=OsFileSystem(), folder=str(tmp_path / "content"))
    session, flowfile = taken(world, b"")
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * 3_000_000)
    assert session.import_from(flowfile, source).size == 3_000_000
    assert session.export_to(flowfile, target) == 3_000_000
    assert target.read_bytes() == source.read_bytes()
    assert session.import_from(flowfile, io.BytesIO(b"a\nb\n")).size == 4
    buffer = io.BytesIO()
    assert session.export_to(flowfile, buffer) == 4
    assert buffer.getvalue() == b"a\nb\n"
    session.import_from(flowfile, iter([b"1", b"2"]))
    with pytest.raises(NotFound):
        session.import_from(flowfile, tmp_path / "none")
    assert sent(world, session, flowfile) == [b"12"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["content", "source", "target"]


@pytest.mark.parametrize("step", ["create", "append", "fsync", "rename"])
def test_an_export_that_fails_leaves_the_file_as_it_was(step: str) -> None:
    fs = CrashableFileSystem()
    world = SessionWorld(fs=fs)
    session, flowfile = taken(world, b"new")
    fs.write_atomically("target", b"old")
    fs.fail_next(step)
    with pytest.raises(Unavailable):
        session.export_to(flowfile, "target")
    assert fs.read_bytes("target") == b"old"
    assert not fs.exists("target.part")
    assert sent(world, session, flowfile) == [b"new"]


def test_a_full_disk_while_writing_leaves_the_flowfile_as_it_was() -> None:
    fs = CrashableFileSystem()
    world = SessionWorld(fs=fs)
    session, flowfile = taken(world, b"old")
    fs.fail_next("append")
    with pytest.raises(Unavailable):
        session.write(flowfile, b"new")
    for data in (b"x" * 1_000_000, b"gathered"):
        with pytest.raises(Unavailable):
            failing(fs, session.write(flowfile), data)
    assert session.read_all(flowfile) == b"old"
    assert sent(world, session, flowfile) == [b"old"]


def test_a_full_disk_that_takes_earlier_appends_with_it_rolls_back_at_the_commit() -> None:
    fs = CrashableFileSystem()
    world = SessionWorld(fs=fs)
    session, flowfile = taken(world, b"old")
    with session.append(flowfile) as out:
        out.write(b"1")
    with pytest.raises(Unavailable):
        failing(fs, session.append(flowfile), b"x" * 1_000_000)
    assert session.read_all(flowfile) == b"old"
    session.transfer(flowfile, "success")
    with pytest.raises(Unavailable, match="the bytes appended"):
        session.commit()
    assert world.contents("a") == [b"old"]
    world.check()


def test_content_that_cannot_be_finished_rolls_back_at_the_commit() -> None:
    fs = CrashableFileSystem()
    world = SessionWorld(fs=fs)
    session, flowfile = taken(world, b"old")
    with session.append(flowfile) as out:
        out.write(b"gathered")
    session.transfer(flowfile, "success")
    fs.fail_next("append")
    with pytest.raises(Unavailable):
        session.commit()
    assert world.contents("a") == [b"old"]
    world.check()
