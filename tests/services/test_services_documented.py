"""Metrics are in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.indexing.ports import TaskState

ROOT = Path(__file__).parent.parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def test_emitted_metrics() -> None:
    folders = (ROOT / "src/penstock/services", ROOT / "src/penstock/indexing")
    sources = "".join(path.read_text() for one in folders for path in one.rglob("*.py"))
    names = set(re.findall(r'"((?:task|ingest|sqlQuery)/[a-z]+(?:/[a-z]+)?)"', sources))
    names |= {f"task/{end.lower()}/count" for end in (TaskState.SUCCESS, TaskState.FAILED)}
    assert {"task/run/time", "sqlQuery/time", "ingest/input/bytes"} <= names
    assert not {name for name in names if f"`{name}`" not in OPERATIONS}
    # Their names have the type of a supervisor in them.
    lags = re.findall(r'_one\(f"([A-Za-z]+)\{suffix\}"', sources)
    assert len(lags) == 4
    assert all(re.search(rf"`(?:ingest/TYPE|…)/{name}`", OPERATIONS) for name in lags)
    assert all(re.search(rf"`(?:ingest/TYPE|…)/{name}/time`", OPERATIONS) for name in lags)


def test_metrics() -> None:
    folders = (ROOT / "src/penstock/services", ROOT / "src/penstock/flow")
    sources = "".join(path.read_text() for one in folders for path in one.rglob("*.py"))
    names = set(re.findall(r'"(penstock_[a-z_]+)"', sources))
    assert len(names) > 10
    assert not {name for name in names if f"`{name}`" not in OPERATIONS}
