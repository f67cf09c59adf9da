"""A user who may send tasks and flows reads no secrets of the processes and of the data folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.testing.server import LocalPenstock
from tests.system.serving_kit import until

pytestmark = pytest.mark.system

WAIT_S = 120


def ended(client: httpx.Client, path: str, body: object) -> tuple[str, str]:
    """Return the state of a task at its end, and its error."""
    answer = client.post(path, json=body)
    assert answer.is_success, answer.text
    name = answer.json()["taskId"]

    def status() -> dict[str, str]:
        found = client.get(f"/druid/indexer/v1/task/{name}/status").json()["status"]
        return dict(found)

    until(f"the end of {name}", lambda: status()["statusCode"] != "RUNNING", WAIT_S)
    return status()["statusCode"], status()["errorMsg"]


@pytest.fixture
def client(shared_penstock: LocalPenstock) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=shared_penstock.api_url, timeout=WAIT_S) as client:
        yield client


def test_no_task_and_no_flow_reads_a_secret(
    shared_penstock: LocalPenstock, client: httpx.Client, tmp_path: Path
) -> None:
    data = shared_penstock.folder
    rows = tmp_path / "rows.tsv"
    rows.write_text("rows\n")
    (tmp_path / "link.tsv").symlink_to(data / "run" / "options.json")

    def copy(source: object) -> tuple[str, str]:
        given = json.dumps(source).replace("'", "''")
        statement = (
            "REPLACE INTO stolen OVERWRITE ALL"
            " SELECT TIMESTAMP '2026-11-28' AS __time, line FROM TABLE(EXTERN("
            f'\'{given}\', \'{{"type": "tsv", "columns": ["line"]}}\','
            ' \'[{"name": "line", "type": "string"}]\')) PARTITIONED BY DAY'
        )
        return ended(client, "/druid/v2/sql/task", {"query": statement})

    for folder, name in (
        (Path("/proc/self"), "environ"),
        (Path(f"/proc/{shared_penstock.pid}"), "environ"),
        (data, "metadata.db"),
        (tmp_path, "link.tsv"),
    ):
        state, error = copy({"type": "local", "baseDir": str(folder), "filter": name})
        assert state == "FAILED"
        assert "must not read files of" in error
        below = data / "run" if folder == data else folder
        flow = f"""
name: steal
processors:
  Get:
    type: GetFile
    properties: {{folder: '{below}', keep_source: true}}
    auto_terminated: success
"""
        answer = client.post("/flow/validate", content=flow)
        assert folder == tmp_path or "must not read files of" in answer.text
    assert copy({"type": "local", "files": [str(rows)]})[0] == "SUCCESS"
