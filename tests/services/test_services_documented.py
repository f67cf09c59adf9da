"""Metrics, events and error codes of the code are in the reference, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.core.http_errors import _TABLE
from penstock.indexing.ports import TaskState
from reference.markdown import data
from reference.metrics import metrics

ROOT = Path(__file__).parent.parent.parent


def sources(*packages: str) -> str:
    folders = (ROOT / "src/penstock" / one for one in packages)
    return "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))


def test_emitted_metrics() -> None:
    code = sources("services", "indexing")
    names = set(re.findall(r'"((?:task|ingest|sqlQuery)/[a-z]+(?:/[a-z]+)?)"', code))
    names |= {f"task/{end.lower()}/count" for end in (TaskState.SUCCESS, TaskState.FAILED)}
    names |= set(re.findall(r'"(segment/killed/[A-Za-z]+/count)"', code))
    # Their names have the type of a supervisor in them.
    lags = re.findall(r'_one\(f"([A-Za-z]+)\{suffix\}"', code)
    assert len(lags) == 4
    names |= {f"ingest/TYPE/{lag}{suffix}" for lag in lags for suffix in ("", "/time")}
    names |= {"ingest/events/NAME"}
    names |= {f"task/{state}/count" for state in re.findall(r'"(waiting|pending|running)"', code)}
    assert data("events")["metrics"].keys() ^ names == set()


def test_alerts() -> None:
    code = sources("services", "indexing", "core", "fastpath")
    assert [text for text, *_ in data("events")["alerts"] if text not in code] == []


def test_error_codes() -> None:
    codes = {group["id"]: group["codes"].keys() for group in data("errors")}
    more = {"unauthorized", "notLeader"}  # answered before a route
    assert codes["services"] == {row.code for row in _TABLE} | more
    code = sources("broker")
    of_http = set(re.findall(r'(?:ApiError|HttpRefusal)\(\s*\d+, "([A-Z_]+)"', code))
    of_http |= set(re.findall(r'"((?:BAD|BODY|MSG)_[A-Z_]+)"', code))
    told = {one for one in codes["broker"] if "…" not in one}
    assert {one for one in of_http if not one.startswith(("INVALID_", "MISSING_"))} - told == set()
    assert {one for one in told if f'"{one}"' not in code} == set()
    of_tcp = set(re.findall(r"\bE_[A-Z]+(?:_[A-Z]+)?\b", code))
    assert of_tcp | {"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"} == codes["tcp"]


def test_metrics() -> None:
    """The page has each metric that the code declares, and no other."""
    code = sources("services", "fastpath", "segments", "flow", "core", "broker")
    names = set(re.findall(r'"(penstock_[a-z_0-9]+)"(?:,|$)', code, re.MULTILINE)) - {
        "penstock_version"
    }
    assert len(names) > 10
    assert names ^ {name for name in metrics() if "…" not in name} == set()
