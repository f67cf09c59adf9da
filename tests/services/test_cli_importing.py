"""`penstock import nsq`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.services.cli.entry import run
from tests.broker.nsqd_writer_kit import NsqdQueue, write_topics


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "nsqd"
    folder.mkdir()
    write_topics(folder, ("t", False, [("c", False)]))
    queue = NsqdQueue(folder, "t:c", 400)
    queue.put(*[b"%02d" % number for number in range(30)])
    queue.sync()
    return folder


def test_topics_and_damage_are_shown(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (source / "t:c.diskqueue.000001.dat").unlink()
    command = ["import", "nsq", str(source), "--data-dir", str(tmp_path / "data")]
    assert run(command) == 0
    shown = capfd.readouterr().out
    assert "18 messages imported, 12 lost to damage" in shown
    assert "t:c.diskqueue.000001.dat" in shown
    assert run(command) != 0
    assert "--skip-existing" in capfd.readouterr().err
    assert run([*command, "--skip-existing", "--json"]) == 0
    (topic,) = json.loads(capfd.readouterr().out)["topics"]
    assert topic["result"] == "it exists already"


def test_doubtful_messages_have_a_place_and_json_agrees_with_the_text(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damaged = source / "t:c.diskqueue.000000.dat"
    with damaged.open("r+b") as file:
        file.write((30).to_bytes(4, "big"))  # two bytes of body too many
    (source / "t:c.diskqueue.000001.dat").unlink()
    command = ["import", "nsq", str(source), "--data-dir"]
    assert run([*command, str(tmp_path / "text")]) == 0
    shown = capfd.readouterr()
    assert "17 messages imported, 1 doubtful left out, 12 lost to damage" in shown.out
    assert "doubtful message at byte 0" in shown.out
    assert "--doubtful" in shown.err
    assert run([*command, str(tmp_path / "json"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["totals"] == {"messages": 17, "doubtful": 1, "lost": 12}
    assert sum(file["lost"] for file in document["files"]) == 12
    assert sum(file["doubtful"] for file in document["files"]) == 1
    assert "extends over" in document["files"][0]["damage"]


def test_what_is_no_folder_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["import", "nsq", str(tmp_path / "none"), "--data-dir", str(tmp_path / "data")]
    assert run(command) != 0
    assert "none" in capfd.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_folder_of_something_else_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    command = ["import", "nsq", str(tmp_path), "--data-dir", str(tmp_path / "data")]
    assert run(command) != 0
    assert "--data-path" in capfd.readouterr().err
    assert not (tmp_path / "data").exists()
