"""docs/howto/move-from-nifi.md: its flow can be applied, its commands do what it says."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import PenstockError
from penstock.flow.controller.controller import FlowController
from penstock.flow.flowfile import FlowFile
from penstock.flow.graph.flow_model import Retry
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.scheduling.cron.expression import CronExpression
from penstock.services.cli.entry import run
from penstock.services.host.data_folder import DataFolder
from penstock.services.processors import PROCESSORS
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.storage.disk import OsFileSystem
from tests.docs.markdown_kit import ROOT, fences
from tests.harness.nifi_swap_kit import nifi_swap_bytes

PAGE = ROOT / "docs" / "howto" / "move-from-nifi.md"
QUEUE = "0a1b2c3d-0158-1000-ffff-ffffa1b2c3d4"


def section(name: str) -> str:
    found = re.search(rf"^##+ {name}\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def rows(name: str) -> list[list[str]]:
    """Return the cells of the table in a section."""
    lines = [line for line in section(name).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    (yaml,) = [fence.text for fence in fences(PAGE) if fence.language == "yaml"]
    numbers = itertools.count()
    controller = FlowController.open(
        str(folder.flow),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry(PROCESSORS),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
    )
    try:
        controller.apply(read_flow(yaml.encode(), "orders.yaml").flow)
    finally:
        controller.close()
    return folder.path


@pytest.fixture
def nifi(tmp_path: Path) -> Path:
    content = tmp_path / "nifi" / "content_repository" / "1"
    swap = tmp_path / "nifi" / "flowfile_repository" / "swap"
    for folder in (content, swap):
        folder.mkdir(parents=True)
    (content / "17-1").write_bytes(b"{}" * 20_000)
    resource = ResourceClaim("17-1", "default", "1")
    for file in range(2):
        records = [
            FlowFile(n, {"uuid": f"u{n}"}, 2, ContentClaim(resource, 2 * n, 2), queued_ms=n)
            for n in range(file * 10_000, (file + 1) * 10_000)
        ]
        name = f"176371200{file}000-{QUEUE}-{QUEUE}.swap"
        (swap / name).write_bytes(nifi_swap_bytes(QUEUE, records[::-1]))
    return tmp_path / "nifi"


def commands() -> Iterator[tuple[list[str], list[str]]]:
    """Yield the commands of the page, and what it says that they print."""
    for text in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for shown in text.replace("\\\n", " ").split("$ ")[1:]:
            line, *out = (one.strip() for one in shown.strip().splitlines())
            yield shlex.split(line), out


def test_the_commands_do_what_the_page_says(
    data: Path, nifi: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = 0
    for (program, *words), out in commands():
        assert program == "penstock"
        command = "\n".join(words).replace("/opt/nifi", str(nifi))
        assert run(command.replace("/var/lib/penstock", str(data)).split("\n")) == 0
        printed = [line.strip() for line in capfd.readouterr().out.splitlines()]
        assert out
        assert set(out) <= set(printed)
        ran += 1
    assert ran == 3


def test_processors_that_are_named_are_there() -> None:
    here = " ".join(cells[1] for cells in rows("Processors") if cells[1] != "the same")
    same = " ".join(cells[0] for cells in rows("Processors") if cells[1].startswith("the same"))
    named = re.findall(r"`([A-Z]\w+)`", here + same)
    assert len(named) > 25
    assert set(named) <= PROCESSORS.keys()


def test_cron_expressions_of_the_page() -> None:
    for theirs, ours, _ in rows("CRON"):
        CronExpression.parse(ours.strip("`"), "UTC").next_times(0, 1)
        if not re.search(r"[1-7]-[1-7]$", theirs.strip("`")):
            with pytest.raises(PenstockError):
                CronExpression.parse(theirs.strip("`"), "UTC")


def test_what_is_said_of_retry_is_right() -> None:
    written = re.search(r"`retry: {failure: ({.*?})}`", PAGE.read_text())
    assert written is not None
    retry = Retry()
    assert written[1] == (
        f"{{count: {retry.count}, backoff: {retry.backoff}, max_backoff: {retry.max_backoff}}}"
    )
