"""The quota of tasks, at the overlord's API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.overlord_kit import Api, OverlordWorld, noop

RULES = """
[roles.writer]
allow = ["write datasource:*", "read,write task:*"]

[roles.two.quotas]
tasks = 2
"""
TASK = "/druid/indexer/v1/task"
ROLES = ("writer", "two")


class Rig:
    def __init__(self, folder: Path) -> None:
        self.access = AccessFolderKit(folder / "access", RULES).control
        self.world = OverlordWorld(folder).start()
        self.api = Api(self.world.make_app(access=self.access))

    def submit(
        self, task: str, name: str, *roles: str, context: dict[str, object] | None = None
    ) -> httpx.Response:
        headers = as_principal(self.access, name, *roles)
        return self.api.post(TASK, json=noop(task, context=context or {}), headers=headers)

    def context(self, task: str) -> dict[str, object]:
        headers = as_principal(self.access, "user:root", "admin")
        answer = self.api.get(f"{TASK}/{task}", headers=headers)
        context: dict[str, object] = answer.json()["payload"]["context"]
        return context

    def close(self) -> None:
        self.api.close()
        self.world.close()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with closing(Rig(tmp_path_factory.mktemp("tasks"))) as made:
        yield made


def test_tasks_that_have_not_ended_are_counted(rig: Rig) -> None:
    assert rig.submit("a", "user:alice", *ROLES).status_code == 200
    assert rig.submit("b", "user:alice", *ROLES).status_code == 200
    refused = rig.submit("c", "user:alice", *ROLES)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
    assert refused.json()["errorCode"] == "quotaExceeded"
    assert refused.json()["errorMessage"].startswith(
        "user:alice has as many tasks that have not ended as its quota tasks allows (2): wait until"
    )
    assert rig.world.metadata.tasks.get("c") is None
    # An id that exists is a conflict, as always.
    assert rig.submit("a", "user:alice", *ROLES).json()["errorCode"] == "conflict"
    assert rig.submit("d", "user:bob", *ROLES).status_code == 200
    assert rig.submit("e", "user:carol", "writer").status_code == 200
    rig.world.runs("a")
    rig.world.end("a")
    assert rig.submit("c", "user:alice", *ROLES).status_code == 200


def test_a_spec_cannot_name_another_submitter(rig: Rig) -> None:
    bobs = {"submitter": "user:erin", "priority": 3}
    for task in ("f", "g"):
        assert rig.submit(task, "user:dave", "writer", context=bobs).status_code == 200
    assert rig.submit("h", "user:erin", *ROLES).status_code == 200
    assert rig.context("f") == {"submitter": "user:dave", "priority": 3}
    for task in ("i", "j"):
        mine = rig.submit(task, "user:erin", *ROLES, context={"submitter": "user:x"})
        assert mine.status_code == (200 if task == "i" else 429)


def test_tasks_without_an_id_count_too(rig: Rig) -> None:
    headers = as_principal(rig.access, "user:frank", *ROLES)
    body = {"type": "noop", "dataSource": "d"}
    answers = [rig.api.post(TASK, json=body, headers=headers).status_code for _ in range(3)]
    assert answers == [200, 200, 429]
