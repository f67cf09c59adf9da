"""Permissions of the data folder: another user tries to read it, under any umask of ours."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.flow.write_guard import WRITE_GUARD
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import SegmentId
from penstock.services.host.folder_permissions import (
    GROUP_UMASK,
    make_deep_storage,
    private_data_folder,
)
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.table import PenstockOptions
from penstock.services.roles import flow
from penstock.services.roles.runtime import RoleContext, access_control_of
from penstock.storage.disk import OsFileSystem
from penstock.storage.metadata import MetadataStore
from penstock.storage.sqlite_urls import sqlite_url
from tests.harness.event_kit import KeptEvents
from tests.services.places_kit import FixedPlaces
from tests.services.start_kit import Start

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")

GROUP = 54_321  # of nobody
OTHER_USER = 65_534


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's."""
    umask = os.umask(0o022)
    folder = Path(tempfile.mkdtemp(prefix="penstock-permissions-"))
    folder.chmod(0o755)
    yield folder
    os.umask(umask)
    shutil.rmtree(folder)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def as_other(*command: str, groups: str = "") -> bool:
    """Whether a command succeeds as another user."""
    identity = ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}"]
    identity += [f"--groups={groups}"] if groups else ["--clear-groups"]
    return subprocess.run([*identity, *command], capture_output=True, check=False).returncode == 0


def fill(data: Path) -> None:
    """Write what roles write: each by its own code."""
    with MetadataStore.open(sqlite_url(data / "metadata.db"), clock=SystemClock()):
        pass
    fs = OsFileSystem()
    fs.mkdir(str(data / "topics" / "t"))
    fs.write_atomically(str(data / "topics" / "t" / "log"), b"x")
    (data / "log" / "broker.log").write_text("x")
    push(data)


def push(data: Path, unique: str = "a") -> Path:
    fs = OsFileSystem()
    fs.write_atomically(str(data / "tasks" / "made"), b"rows")
    segment = SegmentId.parse("t_2020-01-01T00:00:00.000Z_2020-01-02T00:00:00.000Z_v")
    assert segment is not None
    store = DeepStore(str(data / "segments"))
    store.make_root()
    pushed = store.push(str(data / "tasks" / "made"), segment, unique)
    return Path(store.location(pushed.load_spec))


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


def open_entries(data: Path) -> list[str]:
    return [str(path) for path in (data, *data.rglob("*")) if mode(path) & 0o077]


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_what_is_created_is_for_its_user_alone(home: Path, umask: int) -> None:
    os.umask(umask)
    data = home / "data"
    private_data_folder(PenstockOptions(data_dir=data))
    fill(data)
    assert open_entries(data) == []
    # Of the database and its log, too, while they are open.
    with MetadataStore.open(sqlite_url(data / "metadata.db"), clock=SystemClock()):
        assert {mode(path) for path in data.glob("metadata.db*")} == {0o600}


def test_children_inherit_it(home: Path) -> None:
    private_data_folder(PenstockOptions(data_dir=home / "data"))
    made = home / "made"
    code = "import sys; open(sys.argv[1], 'w').close()"
    subprocess.run([sys.executable, "-c", code, str(made)], check=True)
    assert mode(made) == 0o600


@needs_root
def test_an_old_folder_is_closed(home: Path) -> None:
    data = home / "data"
    data.mkdir()
    for part in ("topics/t", "log", "segments/a/b", "flow"):
        (data / part).mkdir(parents=True)
    for file in ("metadata.db", "topics/t/0", "segments/a/b/index.parquet", "penstock.toml"):
        (data / file).write_text("secret")
    (data / "format.json").write_text('{"format": 1}')
    data.chmod(0o777)
    assert as_other("cat", str(data / "metadata.db"))
    private_data_folder(PenstockOptions(data_dir=data))
    for file in data.rglob("*"):
        assert not as_other("ls", str(file)), file
    assert mode(data) == 0o700
    assert {mode(entry) for entry in data.iterdir() if entry.is_dir()} == {0o700}
    assert {mode(entry) for entry in data.iterdir() if entry.is_file()} == {0o600}


def test_a_part_on_another_disk_is_closed_too(home: Path) -> None:
    disk = home / "disk"
    disk.mkdir()
    data = home / "data"
    data.mkdir()
    (data / "format.json").write_text('{"format": 1}')
    (data / "topics").symlink_to(disk)
    private_data_folder(PenstockOptions(data_dir=data))
    assert mode(disk) == 0o700


@needs_root
def test_segments_are_opened_to_one_group_alone(home: Path) -> None:
    data = home / "data"
    os.umask(0o077)
    private_data_folder(PenstockOptions(data_dir=data))
    fill(data)  # before the group was given
    old = push(data, "old")
    private_data_folder(PenstockOptions(data_dir=data, segments_group=str(GROUP)))
    until(lambda: (data / "run" / "segments-group").read_text().startswith("done "))
    new = push(data, "new")
    for file in (old, new):
        assert as_other("cat", str(file), groups=str(GROUP))
        assert not as_other("cat", str(file))
        assert not as_other("tee", str(file), groups=str(GROUP))
        assert (mode(file), file.stat().st_gid) == (0o640, GROUP)
        assert mode(file.parent) == 0o2750
    for closed in ("metadata.db", "topics/t/log", "log/broker.log", "format.json", "."):
        assert not as_other("cat", str(data / closed), groups=str(GROUP))
        assert not as_other("ls", str(data), groups=str(GROUP))
    outside = [Path(one) for one in open_entries(data) if "/segments" not in one]
    assert {one.name for one in outside if mode(one) & 0o077 and one.parent == data} == set()
    assert mode(data) == 0o710

    # Without the option everything is closed again.
    private_data_folder(PenstockOptions(data_dir=data))
    assert not as_other("cat", str(new), groups=str(GROUP))


def test_a_start_makes_the_folder_of_a_local_deep_storage(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_deep_storage(PenstockOptions(data_dir=home / "data"))
    assert (home / "data" / "segments").is_dir()
    make_deep_storage(
        PenstockOptions(data_dir=home / "data", deep_storage=f"file://{home}/a%20b/deep")
    )
    assert (home / "a b" / "deep").is_dir()
    make_deep_storage(PenstockOptions(data_dir=home / "data", deep_storage="s3://lake/segments"))
    (home / "file").touch()
    make_deep_storage(PenstockOptions(data_dir=home / "data", deep_storage=f"{home}/file/deep"))
    assert "cannot create" in caplog.text, "readiness tells it; the start goes on to there"


@needs_root
def test_segments_elsewhere_are_opened_and_closed(home: Path) -> None:
    data, elsewhere = home / "data", home / "deep"
    grouped = PenstockOptions(data_dir=data, deep_storage=str(elsewhere), segments_group=str(GROUP))
    private_data_folder(grouped)
    assert (mode(elsewhere), elsewhere.stat().st_gid) == (0o2750, GROUP)
    assert mode(data) == 0o700
    marker = data / "run" / "segments-group"
    until(lambda: marker.read_text().startswith("done "))
    private_data_folder(PenstockOptions(data_dir=data, deep_storage=str(elsewhere)))
    assert mode(elsewhere) == 0o700
    assert not marker.exists()


def test_a_group_that_cannot_be_used_is_refused(home: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such group"):
        private_data_folder(PenstockOptions(data_dir=home / "d", segments_group="no-such-group"))
    remote = PenstockOptions(data_dir=home / "d", segments_group="0", deep_storage="s3://bucket/x")
    with pytest.raises(InvalidRequest, match="set the permissions in that store"):
        private_data_folder(remote)
    assert not (home / "d").exists()


@needs_root
def test_a_group_of_others_is_refused(home: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from penstock.services.options.table import PenstockOptions\n"
        "from penstock.services.host.folder_permissions import private_data_folder\n"
        "options = PenstockOptions(data_dir=Path(sys.argv[1]), segments_group=sys.argv[2])\n"
        "private_data_folder(options)\n"
    )
    data = home / "data"
    data.mkdir()
    os.chown(data, OTHER_USER, OTHER_USER)
    identity = ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
    if not as_other(sys.executable, "-c", "import penstock"):
        pytest.skip("the other user cannot run this Python")
    command = [*identity, sys.executable, "-c", code, str(data), str(GROUP)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "run Penstock as a member of the group" in ended.stderr


def test_the_flow_makes_its_folder_for_its_user_also_under_the_umask_for_a_group(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "collect_for_flows", lambda: None)
    options = PenstockOptions(data_dir=home / "data")
    private_data_folder(options)
    os.umask(GROUP_UMASK)
    with socket.socket() as listener:
        context = RoleContext(
            *("flow", options, SystemClock(), listener, Start(), int, KeptEvents()),
            access=access_control_of(options, SystemClock(), "flow"),
        )
        host = flow.FlowHost(context, BrokerFinder(options, FixedPlaces()))
        host.start()
        host.stop()
    WRITE_GUARD.set([])
    assert mode(home / "data" / "flow") == 0o700


def test_a_start_that_fails_behind_the_flow_ends_it_in_order(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no unexpected end, and the next start finds the folder unlocked."""

    def fail(*_given: object, **_more: object) -> None:
        raise OSError("the device reports an I/O error")

    monkeypatch.setattr(flow, "collect_for_flows", lambda: None)
    options = PenstockOptions(data_dir=home / "data")
    folder = private_data_folder(options)
    (folder.tmp / "flow" / "1").mkdir(parents=True)
    with socket.socket() as listener:
        context = RoleContext(
            *("flow", options, SystemClock(), listener, Start(), int, KeptEvents()),
            access=access_control_of(options, SystemClock(), "flow"),
        )
        host = flow.FlowHost(context, BrokerFinder(options, FixedPlaces()))
        with monkeypatch.context() as broken:
            broken.setattr(flow.shutil, "rmtree", fail)
            with pytest.raises(OSError, match="I/O error"):
                host.start()
        host.stop()
        assert not (folder.run / "flow-ends").exists()
        host.start()
        host.stop()
    WRITE_GUARD.set([])
