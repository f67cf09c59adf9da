"""How often the process of a flow ended unexpectedly, and what its next start does."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.services.host.restart_policy import FLOW_ENDS_MAX
from penstock.services.roles.flow import FlowStarts


@pytest.fixture
def alerts() -> list[str]:
    return []


def test_so_many_ends_in_a_row_hold_the_components(tmp_path: Path, alerts: list[str]) -> None:
    for _ in range(FLOW_ENDS_MAX):
        assert FlowStarts(tmp_path / "ends", alerts.append).may_start()
        assert not alerts
    for _ in range(2):  # an end while they are held changes nothing
        assert not FlowStarts(tmp_path / "ends", alerts.append).may_start()
    assert "ended unexpectedly 5 times in a row" in alerts[0]
    assert "penstock flow start" in alerts[0]


def test_a_release_counts_anew(tmp_path: Path, alerts: list[str]) -> None:
    for _ in range(FLOW_ENDS_MAX):
        FlowStarts(tmp_path / "ends", alerts.append).may_start()
    held = FlowStarts(tmp_path / "ends", alerts.append)
    assert not held.may_start()
    held.released()
    for _ in range(FLOW_ENDS_MAX - 1):
        assert FlowStarts(tmp_path / "ends", alerts.append).may_start()
    assert not FlowStarts(tmp_path / "ends", alerts.append).may_start()


def test_an_end_in_order_or_a_steady_run_counts_anew(tmp_path: Path, alerts: list[str]) -> None:
    for _ in range(FLOW_ENDS_MAX * 2):
        starts = FlowStarts(tmp_path / "ends", alerts.append)
        assert starts.may_start()
        starts.forget()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"x", b"\xff\xfe", b"9" * 10_000])
def test_a_file_of_other_content_is_no_count_of_its_own(
    tmp_path: Path, alerts: list[str], content: bytes
) -> None:
    (tmp_path / "ends").write_bytes(content)
    assert FlowStarts(tmp_path / "ends", alerts.append).may_start() == (content[:1] != b"9")


def test_a_folder_that_cannot_be_written_keeps_no_flow_from_starting(
    tmp_path: Path, alerts: list[str]
) -> None:
    (tmp_path / "file").touch()
    starts = FlowStarts(tmp_path / "file/ends", alerts.append)
    assert starts.may_start()
    starts.released()
    starts.forget()
