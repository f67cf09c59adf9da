"""One suite over the real file system and the one in memory, and what only the real one has."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys

import pytest

from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.storage.disk import OsFileSystem
from penstock.storage.disk_errors import translate_error
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss


@pytest.fixture(params=["memory", "disk"])
def fs(request):
    return OsFileSystem() if request.param == "disk" else CrashableFileSystem()


@pytest.fixture
def folder(fs, tmp_path):
    folder = str(tmp_path / "a" / "b")
    fs.mkdir(folder)
    return folder


def test_append_read_map_and_truncate(fs, folder):
    path = f"{folder}/file"
    file = fs.create(path)
    assert file.writev([b"abc", memoryview(b"def"), b""]) == 6
    assert file.writev([b"ghi"]) == 9
    reader = fs.open_read(path)
    assert (reader.size(), reader.pread(100, 2)) == (9, b"cdefghi")
    mapped = reader.map(6)
    file.truncate(7)
    assert file.writev([b"!"]) == 8
    file.rewrite(0, b"A")
    file.sync()
    file.close()
    file.close()
    reader.close()
    assert mapped[3:] == b"def"
    assert fs.read_bytes(path) == b"Abcdefg!"
    assert fs.stat(path).size == 8
    again = fs.open_append(path)
    assert again.size == 8
    again.close()


def test_a_mapping_outlives_its_file(fs, folder):
    fs.write_atomically(f"{folder}/file", b"content")
    reader = fs.open_read(f"{folder}/file")
    mapped = reader.map(7)
    reader.close()
    fs.unlink(f"{folder}/file")
    assert bytes(mapped) == b"content"
    fs.create(f"{folder}/short").close()
    short = fs.open_read(f"{folder}/short")
    with pytest.raises(Unavailable, match="map"):
        short.map(10)
    short.close()


def test_names(fs, folder):
    fs.write_atomically(f"{folder}/one", b"1")
    fs.write_atomically(f"{folder}/one", b"2")
    fs.mkdir(f"{folder}/sub")
    fs.mkdir(f"{folder}/sub")
    assert fs.listdir(folder) == ["one", "sub"]
    assert fs.read_bytes(f"{folder}/one") == b"2"
    fs.rename(f"{folder}/one", f"{folder}/two")
    fs.fsync_folder(folder)
    fs.fsync_file(f"{folder}/two")
    assert not fs.exists(f"{folder}/one")
    assert fs.stat(f"{folder}/sub").is_folder
    fs.rmdir(f"{folder}/sub")
    fs.unlink(f"{folder}/two")
    assert fs.listdir(folder) == []


def test_a_second_name_is_of_the_same_file(fs, folder):
    file = fs.create(f"{folder}/one")
    fs.mkdir(f"{folder}/sub")
    fs.link(f"{folder}/one", f"{folder}/sub/two")
    file.writev([b"later"])
    file.close()
    fs.unlink(f"{folder}/one")
    assert fs.read_bytes(f"{folder}/sub/two") == b"later"
    with pytest.raises(Conflict, match="exists"):
        fs.link(f"{folder}/sub/two", f"{folder}/sub/two")
    with pytest.raises(NotFound):
        fs.link(f"{folder}/one", f"{folder}/three")


def test_what_is_not_there_or_there_already(fs, folder):
    for call in (fs.open_read, fs.open_append, fs.read_bytes, fs.unlink, fs.stat, fs.fsync_file):
        with pytest.raises(NotFound, match="nothing"):
            call(f"{folder}/nothing")
    with pytest.raises(NotFound):
        fs.listdir(f"{folder}/nothing")
    fs.create(f"{folder}/file").close()
    with pytest.raises(Conflict, match="exists"):
        fs.create(f"{folder}/file")
    fs.create(f"{folder}/file", replace=True).close()
    with pytest.raises(Conflict, match="not a folder"):
        fs.mkdir(f"{folder}/file")
    with pytest.raises(Unavailable, match="not empty"):
        fs.rmdir(folder)


def test_a_folder_has_one_owner(fs, folder):
    lock = fs.lock_folder(folder)
    with pytest.raises(Conflict, match="open"):
        fs.lock_folder(folder)
    lock.release()
    lock.release()
    fs.lock_folder(folder).release()


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.ENOSPC, Unavailable, "free space"),
        (errno.EDQUOT, Unavailable, "quota"),
        (errno.EIO, Unavailable, "check the disk"),
        (errno.EROFS, Unavailable, "mount it writable"),
        (errno.EMFILE, Unavailable, "ulimit -n"),
        (errno.EACCES, InvalidRequest, "permission denied"),
        (errno.ENOTDIR, InvalidRequest, "not a folder"),
        (errno.ENOENT, NotFound, "no such"),
        (errno.EEXIST, Conflict, "exists"),
        (errno.ETIMEDOUT, Unavailable, "try again"),
    ],
)
def test_each_system_error_names_the_path_and_the_mend(number, kind, remedy):
    error = translate_error(OSError(number, os.strerror(number)), "/data/x", "append")
    assert type(error) is kind
    assert "/data/x" in str(error)
    assert remedy in str(error)


def test_a_write_that_the_system_cuts_leaves_the_old_end(tmp_path):
    """The size limit of a process makes a real short write, and then a real error."""
    script = f"""
import resource
from penstock.core.errors import Unavailable
from penstock.storage.disk import OsFileSystem
file = OsFileSystem().create({str(tmp_path / "file")!r})
file.writev([b"x" * 3000])
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
try:
    file.writev([b"y" * 1000, b"z" * 4000])
except Unavailable as error:
    print(error)
print(file.size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
file.writev([b"w" * 10])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "ulimit -f" in done.stdout
    assert done.stdout.splitlines()[-1] == "3000"
    assert (tmp_path / "file").read_bytes() == b"x" * 3000 + b"w" * 10


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_rights(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidRequest, match="permission denied"):
        OsFileSystem().create(str(tmp_path / "file"))


# -- what the file system in memory adds


def test_only_what_was_synced_survives_every_crash():
    seen = set()
    for seed in range(60):
        fs = CrashableFileSystem()
        file = fs.create("/f")
        file.writev([b"synced"])
        file.sync()
        fs.fsync_folder("/")
        file.writev([b"+" * 1500])
        fs.create("/unsynced").close()
        after = fs.crash(seed)
        content = after.read_bytes("/f")
        assert content.startswith(b"synced")
        assert set(content[6:]) <= set(b"+\0")
        seen.add((len(content), content.count(0) > 0, after.exists("/unsynced")))
    assert {(6, False), (1506, False), (1506, True)} <= {(size, holes) for size, holes, _ in seen}
    assert {there for _, _, there in seen} == {True, False}


def test_write_atomically_leaves_the_old_or_the_new_at_every_step():
    outcomes = set()
    for step in range(1, 6):
        for keep in (0, 2, 3):
            for seed in range(5):
                fs = CrashableFileSystem()
                fs.write_atomically("/f", b"old")
                fs.kill_at(fs.steps + step, keep_bytes=keep)
                with contextlib.suppress(PowerLoss):
                    fs.write_atomically("/f", b"new")
                outcomes.add(fs.crash(seed).read_bytes("/f"))
    assert outcomes == {b"old", b"new"}


def test_a_failed_sync_leaves_bytes_that_a_second_one_does_not_save():
    fs = CrashableFileSystem()
    file = fs.create("/f")
    fs.fsync_folder("/")
    file.writev([b"gone"])
    fs.fail_next("fsync")
    with pytest.raises(Unavailable):
        file.sync()
    file.sync()
    assert fs.read_bytes("/f") == b"gone"
    assert fs.crash(1).read_bytes("/f") == b""


def test_what_has_no_end_or_waits_for_a_writer_is_refused(tmp_path):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to("/dev/zero")
    fs = OsFileSystem()
    for path in (pipe, str(tmp_path / "link")):
        with pytest.raises(InvalidRequest, match="device or a pipe"):
            fs.open_read(path)
        with pytest.raises(InvalidRequest, match="device or a pipe"):
            fs.read_bytes(path)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    fs = OsFileSystem()
    for step in (fs.read_bytes, fs.open_read, fs.open_append, fs.create):
        with pytest.raises(InvalidRequest, match="no file can have this name"):
            step(f"{tmp_path}/{name}")
