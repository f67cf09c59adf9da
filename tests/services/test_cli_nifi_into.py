"""`penstock import nifi-swap --into`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import FlowController
from penstock.flow.flowfile import FlowFile
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.services.cli.entry import run
from penstock.services.host.data_folder import DataFolder, DataFolderLock
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.storage.disk import OsFileSystem
from tests.harness.nifi_swap_kit import nifi_swap_bytes

QUEUE = "0a1b2c3d-0158-1000-ffff-ffffa1b2c3d4"
OTHER = "0a1b2c3d-0158-1000-ffff-ffffa1b2c3d5"
WAY = "Make.success -> Log"
FLOW = """\
name: moved
processors:
  Make: {type: GenerateFlowFile}
  Log: {type: LogAttribute, auto_terminated: success}
connections:
  - {from: Make.success, to: Log, prioritizers: [FirstInFirstOutPrioritizer]}
"""

Show = Callable[..., tuple[int, str, str]]


@contextmanager
def controller(data: Path) -> Iterator[FlowController]:
    numbers = itertools.count()
    opened = FlowController.open(
        str(data / "flow"),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(BUILTIN),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
    )
    try:
        yield opened
    finally:
        opened.close()


def swap_file(folder: Path, name: str, numbers: Sequence[int], queue: str = QUEUE) -> Path:
    """Write a swap file whose content lies in one file of its own, the first to go last."""
    section = folder / "content_repository" / "1"
    section.mkdir(parents=True, exist_ok=True)
    (section / name).write_bytes(b"".join(b"%04d" % number for number in numbers))
    resource = ResourceClaim(name, "default", "1")
    records = [
        FlowFile(
            number,
            {"uuid": f"n{number}", "number": str(number)},
            4,
            ContentClaim(resource, 4 * at, 4),
            queued_ms=number,
        )
        for at, number in enumerate(numbers)
    ]
    path = folder / f"{name}-{queue}-{queue}.swap"
    path.write_bytes(nifi_swap_bytes(queue, records[::-1]))
    return path


@pytest.fixture
def nifi(tmp_path: Path) -> Path:
    folder = tmp_path / "nifi"
    folder.mkdir()
    swap_file(folder, "17", range(3))
    swap_file(folder, "18", range(3, 8))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    with controller(folder.path) as opened:
        opened.apply(read_flow(FLOW.encode(), "moved.yaml").flow)
    return folder.path


@pytest.fixture
def show(data: Path, nifi: Path, capfd: pytest.CaptureFixture[str]) -> Show:
    def do(*arguments: str, into: str = WAY) -> tuple[int, str, str]:
        words = ["import", "nifi-swap", str(nifi), "--into", into, *arguments]
        code = run([*words, "--data-dir", str(data)])
        return code, *capfd.readouterr()

    return do


def queued(data: Path) -> list[str]:
    with controller(data) as opened:
        return [one.attributes["number"] for one in opened.queue(WAY).listing.first(100)]


def test_flowfiles_are_in_the_connection_once(show: Show, data: Path, nifi: Path) -> None:
    content = ("--content", str(nifi / "content_repository"))
    code, out, _ = show(*content)
    assert code == 0
    assert "8 FlowFiles imported into Make.success → Log" in out
    code, out, _ = show(*content, "--json")
    answer = json.loads(out)
    assert [(row["imported"], row["before"]) for row in answer["files"]] == [(0, 3), (0, 5)]
    assert show(*content, into=answer["connection"])[0] == 0
    assert queued(data) == [str(number) for number in range(8)]
    with controller(data) as opened:
        assert opened.queue(WAY).size.size_bytes == 32


def test_content_that_is_not_there_is_named(show: Show, data: Path, nifi: Path) -> None:
    (nifi / "content_repository" / "1" / "17").unlink()
    content = ("--content", f"default={nifi / 'content_repository'}")
    code, out, _ = show(*content)
    assert code == 1
    assert "5 FlowFiles imported into Make.success → Log, 3 left out" in out
    assert "is missing" in out
    code, out, _ = show(*content, "--json")
    assert code == 1
    (gone,) = json.loads(out)["left_out"]
    assert gone["content"].endswith("content_repository/1/17")
    assert gone["flowfiles"] == 3
    code, out, _ = show("--without-content")
    assert code == 0
    assert "3 FlowFiles imported into Make.success → Log, 5 were imported before" in out
    assert queued(data) == [str(number) for number in range(8)]


def test_content_is_not_left_behind_unasked(show: Show, data: Path) -> None:
    code, _, err = show()
    assert code == 2
    assert "--without-content" in err
    assert queued(data) == []


def test_queues_of_nifi_come_one_by_one(show: Show, data: Path, nifi: Path) -> None:
    swap_file(nifi, "19", range(20, 22), OTHER)
    (nifi / f"20-{OTHER}-{OTHER}.swap.part").write_bytes(b"")
    content = ("--content", str(nifi / "content_repository"))
    code, _, err = show(*content)
    assert code == 2
    assert "2 queues" in err
    code, out, err = show(*content, "--queue", OTHER)
    assert code == 0
    assert "2 FlowFiles imported" in out
    assert "is skipped" in err
    assert show(*content, "--queue", "x")[0] == 2
    assert queued(data) == ["20", "21"]


def test_damage_is_named_and_the_rest_is_imported(show: Show, data: Path, nifi: Path) -> None:
    cut = next(nifi.glob("17-*"))
    cut.write_bytes(cut.read_bytes()[:-10])
    next(nifi.glob("18-*")).with_name(f"19-{QUEUE}-{QUEUE}.swap").write_bytes(b"nothing")
    code, out, err = show("--content", str(nifi / "content_repository"))
    assert code == 1
    assert "7 FlowFiles imported into Make.success → Log, 1 lost to damage" in out
    assert "the file ends within" in err
    assert "neither with SWAP nor with a version" in err
    assert len(queued(data)) == 7


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--content", "nowhere"], 2, "is not a folder"),
        (["--content", ".", "--content", "."], 2, "two folders for all containers"),
        (["--content", "a=.", "--content", "a=."], 2, "two folders for container a"),
        (["--content", ".", "--without-content"], 2, "leave out one"),
        (["--export", "x"], 2, "leave out one"),
    ],
)
def test_options_that_do_not_go(show: Show, options: list[str], code: int, message: str) -> None:
    ended, _, err = show(*options)
    assert ended == code
    assert message in err


def test_the_connection_must_be_there(show: Show) -> None:
    code, _, err = show("--without-content", into="Make.success -> Lag")
    assert code == 1
    assert "did you mean 'Make.success → Log'?" in err


def test_penstock_must_not_run(show: Show, data: Path) -> None:
    lock = DataFolderLock(DataFolder(data))
    lock.take()
    code, _, err = show("--without-content")
    lock.release()
    assert code == 1
    assert "stop it first" in err
    with controller(data):
        assert show("--without-content")[0] == 1


def test_without_a_flow_there_is_nowhere_to_go(
    nifi: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["import", "nifi-swap", str(nifi), "--without-content"]
    assert run(words) == 2
    assert "need --into" in capfd.readouterr().err
    folder = DataFolder(tmp_path / "empty")
    words += ["--into", WAY, "--data-dir", str(folder.path)]
    assert run(words) == 2
    assert not folder.path.exists()
    folder.prepare()
    folder.flow.mkdir()
    assert run(words) == 1
    assert "penstock flow apply" in capfd.readouterr().err
