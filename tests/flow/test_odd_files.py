"""Files and folders with odd names, of odd kinds, or that change while they are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from typing_extensions import Buffer

from penstock.flow.processor.processor import InvalidConfiguration
from penstock.flow.processors.files.folders import PIECE_BYTES, OpenFolder
from penstock.flow.processors.files.get_files import FetchFile, GetFile, ListFiles
from penstock.flow.processors.files.put_file import PutFile
from penstock.testing.flow import ProcessorRunner

NAMES = [
    "a\nb", "n" * 255, "-rf", "--help", " ", "*", "a\x1b[31mred", "%41", "a#b", "a?b", "a::b",
    "~", "$HOME", "${x}", "[a]", "back\\slash", "s3:x", "file:x", "u\u0308",
]  # fmt: skip


def put(path: Path, data: bytes = b"data") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (1, 1))
    return path


def get_file(folder: Path, **more: str | int) -> ProcessorRunner[GetFile]:
    return ProcessorRunner(GetFile, {"folder": str(folder), "minimum_age": "0 sec", **more})


def test_a_file_of_any_name_is_taken_and_deleted(tmp_path: Path) -> None:
    for name in NAMES:
        put(tmp_path / name, name.encode())
    put(tmp_path / "a\nfolder/inside", b"inside")
    with get_file(tmp_path) as runner:
        runner.run_until_idle()
        taken = {sent.attributes["filename"]: sent.content for sent in runner.sent("success")}
    assert taken == {name: name.encode() for name in [*NAMES, "inside"]}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_listed_file_of_any_name_is_fetched(tmp_path: Path) -> None:
    for name in NAMES:
        put(tmp_path / name, name.encode())
    properties = {"folder": str(tmp_path), "minimum_age": "0 sec"}
    with ProcessorRunner(ListFiles, properties) as lists, ProcessorRunner(FetchFile) as fetches:
        lists.run_until_idle()
        for sent in lists.sent("success"):
            fetches.enqueue(
                b"", {**sent.attributes, "uuid": sent.attributes["filename"].encode().hex()}
            )
        fetches.run_until_idle()
        assert fetches.counts() == {"success": len(NAMES)}


def test_pipes_devices_and_links_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    targets = {
        "to pipe": tmp_path / "pipe",
        "to device": Path("/dev/zero"),
        "to nothing": tmp_path / "nowhere",
        "to folder": Path("/etc"),
        "loop": tmp_path / "loop",
    }
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
    put(tmp_path / "file")
    with get_file(tmp_path) as runner:
        runner.run_until_idle()
        assert [sent.attributes["filename"] for sent in runner.sent("success")] == ["file"]
    with pytest.raises(InvalidConfiguration, match="must not read files of /dev"):
        ProcessorRunner(FetchFile, {"file": str(tmp_path / "to device")})
    for name in ("pipe", *(targets.keys() - {"to device"})):
        with ProcessorRunner(FetchFile, {"file": str(tmp_path / name)}) as runner:
            runner.enqueue(b"")
            runner.run()
            assert runner.counts() in ({"failure": 1}, {"not.found": 1})


def test_a_link_to_a_file_is_read_and_only_the_link_is_deleted(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", b"kept")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link").symlink_to(outside)
    with get_file(tmp_path / "in") as runner:
        runner.run_until_idle()
        assert [sent.content for sent in runner.sent("success")] == [b"kept"]
    assert list((tmp_path / "in").iterdir()) == []
    assert outside.read_bytes() == b"kept"


def test_a_file_that_grows_without_an_end_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = put(tmp_path / "log", b"x")
    read = 0

    def endless(_self: OpenFolder) -> Iterator[Buffer]:
        nonlocal read
        while True:
            with growing.open("ab") as file:
                file.write(b"x" * PIECE_BYTES)
            read += PIECE_BYTES
            assert read < 10 * PIECE_BYTES
            yield b"x" * PIECE_BYTES

    monkeypatch.setattr(OpenFolder, "pieces", endless)
    with get_file(tmp_path) as runner:
        runner.run()
        assert runner.counts() == {}
    assert growing.exists()


@pytest.mark.parametrize("kind", ["folder", "pipe", "nothing"])
def test_a_file_that_was_replaced_after_it_was_listed_is_left(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "a")
    with get_file(tmp_path, batch_size=1) as runner:
        put(tmp_path / "b")
        runner.run()
        (tmp_path / "b").unlink()
        if kind == "folder":
            (tmp_path / "b").mkdir()
        elif kind == "pipe":
            os.mkfifo(tmp_path / "b")
        runner.run_until_idle()
        assert runner.counts() == {"success": 1}


def test_a_path_that_became_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    folder = OpenFolder(LocalFileSystem(), str(tmp_path / "pipe"), is_local=True)
    with pytest.raises(Exception, match="is not a file"):
        next(folder.pieces())


def test_a_subfolder_that_cannot_be_listed_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "closed/known")
    put(tmp_path / "open/first")
    ls = LocalFileSystem.ls

    def refusing(self: LocalFileSystem, path: str, **more: object) -> object:
        if path.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return ls(self, path, **more)

    with get_file(tmp_path, keep_source="true") as runner:
        runner.run_until_idle()
        assert len(runner.sent("success")) == 2
        monkeypatch.setattr(LocalFileSystem, "ls", refusing)
        put(tmp_path / "open/second")
        runner.run_until_idle()
        assert len(runner.sent("success")) == 3
        monkeypatch.undo()
        runner.run_until_idle()
        assert len(runner.sent("success")) == 3, "known files are not taken again"


def test_what_is_left_out_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    with get_file(tmp_path, file_filter="(?s).*") as runner:
        runner.advance(3_600_000_000_000)
        runner.run(5)
    assert len([one for one in caplog.messages if "not valid UTF-8" in one]) == 1


def test_folders_of_more_levels_than_a_path_can_name_hold_up_no_other(tmp_path: Path) -> None:
    put(tmp_path / "file")
    begin = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(40):
            Path("d" * 200).mkdir()
            os.chdir("d" * 200)
    finally:
        os.fchdir(begin)
        os.close(begin)
    with get_file(tmp_path) as runner:
        runner.run_until_idle()
        assert len(runner.sent("success")) == 1


def test_a_file_of_any_name_is_written(tmp_path: Path) -> None:
    with ProcessorRunner(PutFile, {"folder": str(tmp_path)}) as runner:
        for name in NAMES:
            runner.enqueue(name.encode(), filename=name)
        runner.run_until_idle()
        assert runner.counts() == {"success": len(NAMES)}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: name.encode() for name in NAMES
    }


def test_a_folder_of_very_many_levels_is_a_failure(tmp_path: Path) -> None:
    for below in ("/x" * 1_900, "/x" * 10_000, "/" + "x" * 300):
        with ProcessorRunner(PutFile, {"folder": str(tmp_path) + below}) as runner:
            runner.enqueue(b"", filename="a")
            runner.run()
            assert runner.counts() == {"failure": 1}
            assert not runner.sent("failure")[0].is_penalized
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["nowhere", "outside"])
def test_a_link_is_replaced_and_never_followed(tmp_path: Path, target: str) -> None:
    put(tmp_path / "outside", b"kept")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a").symlink_to(tmp_path / target)
    for conflict, counts in (("fail", {"failure": 1}), ("replace", {"success": 1})):
        properties = {"folder": str(tmp_path / "in"), "conflict": conflict}
        with ProcessorRunner(PutFile, properties) as runner:
            runner.enqueue(b"new", filename="a")
            runner.run()
            assert runner.counts() == counts
        assert (tmp_path / "in/a").is_symlink() == (conflict == "fail")
    assert (tmp_path / "outside").read_bytes() == b"kept"
    assert not (tmp_path / "nowhere").exists()
