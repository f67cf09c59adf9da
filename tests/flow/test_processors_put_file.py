"""PutFile."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from penstock.flow.processor.processor import InvalidConfiguration
from penstock.flow.processors.files.put_file import PutFile
from penstock.testing.flow import ProcessorRunner
from penstock.testing.memory_disk import CrashableFileSystem


def test_content_is_written_under_the_filename(tmp_path: Path) -> None:
    with ProcessorRunner(PutFile, {"folder": f"{tmp_path}/${{day}}/x"}) as runner:
        runner.enqueue(b"content" * 500_000, filename="a.txt", day="monday")
        runner.enqueue(b"", filename="empty", day="monday")
        runner.run(2)
        folder = tmp_path / "monday/x"
        assert (folder / "a.txt").read_bytes() == b"content" * 500_000
        assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "empty"]
        assert runner.sent("success")[0].attributes["file.path"] == str(folder / "a.txt")


@pytest.mark.parametrize(
    ("conflict", "relationship", "left"),
    [("fail", "failure", b"old"), ("replace", "success", b"new"), ("ignore", "success", b"old")],
)
def test_a_file_that_is_there(
    tmp_path: Path, conflict: str, relationship: str, left: bytes
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with ProcessorRunner(PutFile, {"folder": str(tmp_path), "conflict": conflict}) as runner:
        runner.enqueue(b"new", filename="a")
        runner.run()
        assert runner.counts() == {relationship: 1}
        assert (tmp_path / "a").read_bytes() == left
        assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/b", "..", ".", "", "a\0", "x" * 300])
def test_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    with ProcessorRunner(PutFile, {"folder": str(tmp_path / "in")}) as runner:
        runner.enqueue(b"x", filename=name)
        runner.run()
        assert runner.counts() == {"failure": 1}
        assert runner.sent("failure")[0].attributes["error.reason"]
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_leads_upwards_is_not_used(tmp_path: Path) -> None:
    with ProcessorRunner(PutFile, {"folder": f"{tmp_path}/${{where}}"}) as runner:
        runner.enqueue(b"x", where="../../up")
        runner.run()
        assert "contains '..'" in runner.sent("failure")[0].attributes["error.reason"]


def test_a_missing_folder_may_be_a_failure(tmp_path: Path) -> None:
    properties = {"folder": str(tmp_path / "no"), "create_folders": False}
    with ProcessorRunner(PutFile, properties) as runner:
        runner.enqueue(b"x")
        runner.run()
        assert runner.counts() == {"failure": 1}


@pytest.mark.parametrize("step", ["create", "append", "fsync", "rename"])
def test_whatever_fails_leaves_nothing_half_and_is_tried_again(step: str) -> None:
    fs = CrashableFileSystem()
    fs.mkdir("/out")
    with ProcessorRunner(PutFile, {"folder": "/out"}, fs=fs) as runner:
        runner.enqueue(b"content", filename="a")
        fs.fail_next(step)
        runner.run()
        [failed] = runner.sent("failure")
        assert failed.is_penalized
        assert fs.listdir("/out") == []
        runner.enqueue(b"content", filename="a")
        runner.run()
        assert fs.read_bytes("/out/a") == b"content"


@pytest.mark.parametrize("seed", range(5))
def test_what_was_sent_to_success_survives_a_power_loss(seed: int) -> None:
    fs = CrashableFileSystem()
    with ProcessorRunner(PutFile, {"folder": "/out/deep"}, fs=fs) as runner:
        runner.enqueue(b"content", filename="a")
        runner.run()
        assert runner.counts() == {"success": 1}
        assert fs.crash(seed).read_bytes("/out/deep/a") == b"content"


def test_a_url_is_a_folder_too() -> None:
    memory = fsspec.filesystem("memory")
    try:
        with ProcessorRunner(PutFile, {"folder": "memory://put/${day}"}) as runner:
            runner.enqueue(b"content", filename="a", day="1")
            runner.enqueue(b"again", filename="a", day="1")
            runner.run(2)
            assert memory.cat("/put/1/a") == b"content"
            assert memory.ls("/put/1", detail=False) == ["/put/1/a"]
            assert runner.counts() == {"success": 1, "failure": 1}
            assert runner.sent("success")[0].attributes["file.path"] == "memory:///put/1/a"
    finally:
        memory.rm("/put", recursive=True)


def test_files_are_for_others_only_if_the_flow_says_so(tmp_path: Path) -> None:
    umask = os.umask(0o077)  # as in the service
    try:
        for permissions, file_mode, folder_mode in (("600", 0o600, 0o700), ("644", 0o644, 0o755)):
            folder = tmp_path / permissions / "x"
            properties = {"folder": str(folder), "permissions": permissions}
            with ProcessorRunner(PutFile, properties) as runner:
                runner.enqueue(b"x", filename="a")
                runner.run()
                assert runner.counts() == {"success": 1}
            assert (folder / "a").stat().st_mode & 0o777 == file_mode
            for made in (folder, folder.parent):
                assert made.stat().st_mode & 0o777 == folder_mode
    finally:
        os.umask(umask)


@pytest.mark.parametrize("permissions", ["", "9", "888", "rwx", "0644", "u+x"])
def test_permissions_are_three_octal_digits(permissions: str) -> None:
    with pytest.raises(InvalidConfiguration, match="permissions: "):
        PutFile(folder="/x", permissions=permissions)
