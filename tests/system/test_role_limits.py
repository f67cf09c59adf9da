"""Roles under real limits: memory, file descriptors, threads.

Whatever a limit made fail, a role works again once the limit is lifted, or its process has ended
by itself and works after a restart. Everything acknowledged exists then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.services.host.restart_policy import RESTART_REQUESTED
from tests.system.limit_kit import (
    LIMITED_ANSWER_S,
    Asked,
    LimitedRole,
    check_refused,
    children_of,
    limit_folder,
    limited,
    until,
    works_again,
)

pytestmark = pytest.mark.system

TASKS = "/druid/indexer/v1"
RULES = "/druid/coordinator/v1/rules"
WORKER = "/druid-internal/v1/worker"
ROUNDS = 2
# More than a process has threads for requests before it is limited.
AT_ONCE = 12
TASKS_AT_ONCE = 4
PAD = "x" * 3_000_000


@pytest.fixture
def folder() -> Iterator[Path]:
    with limit_folder() as made:
        yield made


def load(role: LimitedRole, request: Callable[[str], None], prefix: str) -> None:
    """Have several clients ask at once, for some rounds."""
    with role.impatient(LIMITED_ANSWER_S), ThreadPoolExecutor(AT_ONCE) as clients:
        for number in range(ROUNDS):
            if role.has_ended:
                return
            list(clients.map(lambda one, n=number: request(f"{prefix}{n}-{one}"), range(AT_ONCE)))


def check_limited(role: LimitedRole, failed: int) -> None:
    """Insist that the limit made something fail; a role that ended asks for a restart."""
    check_refused(failed, role.log.read_text())
    if role.has_ended:  # at once, or in order because its election failed
        assert role.process.returncode == RESTART_REQUESTED, role.said()


def restart(role: LimitedRole) -> None:
    role.kill()
    role.start()


@pytest.mark.parametrize("kind", ["memory", "files", "threads"])
def test_an_overlord_keeps_tasks_and_locks_that_it_acknowledged(folder: Path, kind: str) -> None:
    role, asked, locked = LimitedRole(folder, "overlord"), Asked(), Asked()
    numbers = itertools.count()

    def submit(name: str) -> None:
        spec = {
            "type": "kill",
            "id": name,
            "dataSource": name,
            "interval": "2020-01-01/P1D",
            "context": {"pad": PAD if kind == "memory" else "x"},
        }
        if asked.note(name, role.ask("POST", f"{TASKS}/task", spec)):
            locked.note(name, role.ask("POST", f"{TASKS}/action", action(name, LOCK)))

    def works() -> bool:
        spec = {"type": "noop", "id": f"again-{next(numbers)}"}
        return asked.note(spec["id"], role.ask("POST", f"{TASKS}/task", spec))

    works_again(role, works)
    submit("before")
    assert locked.acknowledged == {"before"}
    with limited(role.process, kind):
        load(role, submit, "during")
    failed = asked.failed + locked.failed
    works_again(role, works)
    check_limited(role, failed)
    restart(role)
    works_again(role, works)
    for name in asked.acknowledged:
        assert role.ask("GET", f"{TASKS}/task/{name}/status").ok, name
    for name in locked.acknowledged:
        answer = role.ask("POST", f"{TASKS}/action", action(name, {"type": "lockList"}))
        assert answer.ok, answer
        assert "2020-01-01" in str(answer.body), (name, answer)
    assert role.stop() == 0


LOCK = {"type": "lockTryAcquire", "intervals": ["2020-01-01/2020-01-02"], "appends": False}


def action(task: str, given: dict[str, object]) -> dict[str, object]:
    return {"task": task, "action": given}


@pytest.mark.parametrize("kind", ["threads"])
def test_a_router_keeps_rules_that_it_acknowledged_and_answers_again(
    folder: Path, kind: str
) -> None:
    role, asked = LimitedRole(folder, "router", "--spark-connect", "sc://localhost:1"), Asked()
    numbers = itertools.count()

    def set_rules(name: str) -> None:
        body = f'[{PAD if kind == "memory" else ""}{{"type": "loadForever"}}]'
        asked.note(name, role.ask("POST", f"{RULES}/{name}", body.replace("x", " ").encode()))

    def works() -> bool:
        name = f"again{next(numbers)}"
        set_rules(name)
        return name in asked.acknowledged

    works_again(role, works)
    with limited(role.process, kind):
        load(role, set_rules, "during")
    failed = asked.failed
    works_again(role, works)
    check_limited(role, failed)
    restart(role)
    works_again(role, works)
    stored = role.ask("GET", RULES)
    assert stored.ok, stored
    assert isinstance(stored.body, dict)
    assert asked.acknowledged <= stored.body.keys()
    assert role.stop() == 0


# Without the limit of memory, because a worker needs none of its own for a task. That of threads
# binds the peons, too.
@pytest.mark.parametrize("kind", ["files", "threads"])
def test_each_task_that_a_worker_acknowledged_ends_and_later_ones_run(
    folder: Path, kind: str
) -> None:
    options = ("--spark-connect", "sc://localhost:1", "--task-shutdown-timeout", "1s")
    role, asked = LimitedRole(folder, "worker", *options), Asked()

    def assign(name: str) -> None:
        spec = {
            "type": "noop",
            "id": name,
            "runTime": 0,
            "context": {"pad": PAD if kind == "memory" and "during" in name else "x"},
        }
        asked.note(name, role.ask("POST", f"{WORKER}/assignTask", spec))

    def states() -> dict[str, str]:
        answer = role.ask("GET", WORKER)
        if not isinstance(answer.body, dict):  # it ends
            return {}
        return {one["id"]: one["status"] for one in answer.body["tasks"]}

    def have_ended() -> bool:
        found = states()
        return all(found.get(name) in {"SUCCESS", "FAILED"} for name in asked.acknowledged)

    assign("before")
    assert asked.acknowledged == {"before"}
    until(have_ended, role)
    # The fork server, and a peon that waits for a task and gets the first one under the limit.
    until(lambda: len(children_of(role.process.pid)) == 2, role)
    with limited(role.process, kind), role.impatient(LIMITED_ANSWER_S):
        for number in range(TASKS_AT_ONCE):
            assign(f"during{number}")
    failed = asked.failed
    if works_again(role, have_ended):
        assign("after")
        works_again(role, have_ended)
    check_limited(role, failed)
    restart(role)
    until(have_ended, role)
    assign("again")
    assert "again" in asked.acknowledged
    until(have_ended, role)
    assert states()["again"] == "SUCCESS"
    assert role.stop() == 0
