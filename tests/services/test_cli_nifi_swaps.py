"""`penstock import nifi-swap`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.flow.flowfile import FlowFile
from penstock.services.cli.entry import run
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from tests.harness.nifi_swap_kit import nifi_swap_bytes

QUEUE = "0a1b2c3d-0158-1000-ffff-ffffa1b2c3d4"
CLAIM = ContentClaim(ResourceClaim("17-1", "default", "1"), 100, 50)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for at, name in ((1, "17"), (2, "18")):
        records = [FlowFile(at * 10 + n, {"n": str(n)}, 5, CLAIM, 7, 1, 1) for n in range(3)]
        (tmp_path / f"{name}-{QUEUE}-{QUEUE}.swap").write_bytes(nifi_swap_bytes(QUEUE, records))
    (tmp_path / "other.txt").write_text("not one")
    return tmp_path


def show(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["import", "nifi-swap", *arguments])
    return code, *capfd.readouterr()


def test_a_folder_is_listed_in_order(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = show(capfd, str(folder), "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["file"][:3] for row in rows] == ["17-", "18-"]
    assert {(row["format"], row["queue"], row["flowfiles"], row["bytes"]) for row in rows} == {
        ("schema V3", QUEUE, 3, 15)
    }


def test_export(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out_file = tmp_path / "out.jsonl"
    code, out, _ = show(capfd, str(folder), "--export", str(out_file))
    assert code == 0
    assert "6 FlowFiles in 2 files, 0 missing" in out
    lines = [json.loads(line) for line in out_file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [10, 11, 12, 20, 21, 22]
    assert lines[0]["content"] == {
        "container": "default",
        "section": "1",
        "identifier": "17-1",
        "offset": 107,
    }
    code, _, err = show(capfd, str(folder), "--export", str(out_file))
    assert code == 2
    assert "exists" in err


def test_damage_is_named_and_the_rest_is_read(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, cut = sorted(folder.glob("*.swap"))
    cut.write_bytes(cut.read_bytes()[:-10])
    code, out, err = show(capfd, str(whole), str(cut), str(folder / "other.txt"), "--json")
    assert code == 1
    assert [(row["flowfiles"], row["missing"]) for row in json.loads(out)] == [
        (3, 0),
        (2, 1),
        (0, None),
    ]
    assert "the file ends within" in err
    assert "neither with SWAP nor with a version" in err


def test_what_is_not_there(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert show(capfd, str(tmp_path / "none.swap"))[0] == 2
    code, _, err = show(capfd, str(tmp_path))
    assert code == 2
    assert "contains no swap file" in err


def old_file() -> bytes:
    """Return a swap file of NiFi 0.x, version 5, with one FlowFile."""

    def utf(text: str) -> bytes:
        return len(text).to_bytes(2, "big") + text.encode()

    head = (5).to_bytes(4, "big") + utf(QUEUE) + (1).to_bytes(4, "big") + (0).to_bytes(8, "big")
    numbers = (7).to_bytes(8, "big") + (1_000).to_bytes(8, "big")
    lineage = (0).to_bytes(4, "big") + (1_000).to_bytes(8, "big")
    return head + numbers + lineage + (0).to_bytes(8, "big") + b"\0" + (0).to_bytes(4, "big")


def test_files_are_found_by_content_and_unknown_dates_are_not_invented(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a copy").write_bytes(old_file())
    records = [FlowFile(3, {}, 0, None, 0, 1, 1, 22, 4, 33)]
    (tmp_path / "renamed.bin").write_bytes(nifi_swap_bytes(QUEUE, records))
    (tmp_path / "other.txt").write_text("not one")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 40)
    code, out, _ = show(capfd, str(tmp_path), "--export", "-")
    assert code == 0
    lines = {line["id"]: line for line in map(json.loads, out.splitlines())}
    assert set(lines) == {3, 7}
    keys = ("lineageStartIndex", "queuedDate", "queuedIndex")
    assert [lines[7][key] for key in keys] == ["unknown"] * 3
    assert lines[7]["lineageStartDate"] == "1970-01-01T00:00:01.000Z"
    assert [lines[3][key] for key in keys] == [22, "1970-01-01T00:00:00.004Z", 33]
