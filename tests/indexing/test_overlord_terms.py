"""Terms of leadership: begun anew, ended by a newer one, half and full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import Conflict, Fenced, NotFound, Unavailable
from penstock.indexing.overlord.duties.duty import DutyTools
from penstock.indexing.overlord.errors import NotLeading
from penstock.indexing.overlord.runner.runner import TaskRunner
from penstock.storage.metadata import TaskRow
from tests.indexing.indexing_kit import make_task
from tests.indexing.term_kit import TermWorld


class Rounds:
    """A duty that counts its rounds."""

    name = "counting"
    interval_ms = 1_000

    def __init__(self, tools: DutyTools) -> None:
        self.tools = tools
        self.rounds = 0

    def run(self) -> None:
        self.rounds += 1


class DutiesWorld(TermWorld):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.deposed = 0
        self.duties: list[Rounds] = []
        self.overlord = self.make(duties=self.make_duties, deposed=self.depose)

    def make_duties(self, tools: DutyTools) -> list[Rounds]:
        self.duties.append(Rounds(tools))
        return self.duties[-1:]

    def state(self, task_id: str) -> str:
        row = self.metadata.tasks.get(task_id)
        assert row is not None
        return row.state

    def depose(self) -> None:
        self.deposed += 1


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DutiesWorld]:
    made = DutiesWorld(tmp_path)
    yield made
    made.metadata.close()


NOOP = {"type": "noop", "id": "n", "dataSource": "d"}


def test_who_does_not_lead_says_so(world: DutiesWorld) -> None:
    calls: tuple[Callable[[], object], ...] = (
        world.overlord.active_tasks,
        world.overlord.task_service.tasks,
        lambda: world.overlord.perform_action("n", {"type": "lockList"}),
        lambda: world.ask(world.overlord.supervisor_service.every()),
        lambda: world.ask(world.overlord.task_service.submit(NOOP)),
    )
    for call in calls:
        with pytest.raises(NotLeading, match="does not lead"):
            call()


def test_a_process_leads_again_and_again_with_what_is_stored(world: DutiesWorld) -> None:
    for _ in range(3):
        world.ask(world.overlord.start())
        with pytest.raises(Conflict, match="already leads"):
            world.ask(world.overlord.start())
        if not world.overlord.active_tasks():
            assert world.ask(world.overlord.task_service.submit(NOOP)) == "n"
        assert list(world.overlord.active_tasks()) == ["n"]
        world.ask(world.overlord.stop())
        with pytest.raises(NotLeading):
            world.overlord.active_tasks()
    assert world.state("n") == "RUNNING"


def test_a_newer_term_ends_this_one_at_its_first_write(world: DutiesWorld) -> None:
    term = world.metadata.terms.take("overlord", "here", 10_000)
    world.ask(world.overlord.start(term))
    world.ask(world.overlord.task_service.submit(NOOP))
    world.clock.advance(20)
    assert world.metadata.terms.take("overlord", "there", 10_000) is not None
    with pytest.raises(Fenced):
        world.ask(world.overlord.task_service.submit({**NOOP, "id": "late"}))
    world.settle()
    assert world.deposed == 1
    assert world.metadata.tasks.get("late") is None
    assert world.state("n") == "RUNNING"
    with pytest.raises(NotLeading):
        world.overlord.active_tasks()


def test_a_task_whose_end_a_newer_term_refuses_is_that_ones(world: DutiesWorld) -> None:
    row = TaskRow("n", "d", "noop", "n", NOOP, status={"worker": "gone"})
    world.metadata.tasks.insert_new([row])
    term = world.metadata.terms.take("overlord", "here", 10_000)
    world.ask(world.overlord.start(term))
    world.clock.advance(20)
    assert world.metadata.terms.take("overlord", "there", 10_000) is not None
    world.settle(300)  # The worker is lost, and the mailbox goes on though that cannot be stored.
    assert world.deposed == 1
    assert world.state("n") == "RUNNING"


def test_a_task_whose_supervisor_ended_before_anybody_heard_that_it_is_stored_is_ended(
    world: DutiesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ask(world.overlord.start())
    task = make_task()
    row = TaskRow(task.id, task.datasource, task.type, task.group_name, task.to_json())
    world.metadata.tasks.insert_new([row])
    refused = []

    def refuse(changes: list[Any]) -> None:
        refused.append(changes)
        raise Unavailable("the metadata store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(world.metadata.tasks), "set_statuses", lambda _tasks, c: refuse(c))
        world.settle(70)
    assert refused
    assert list(world.overlord.active_tasks()) == [task.id]
    world.settle(60)
    assert world.overlord.active_tasks() == {}
    found = world.metadata.tasks.get(task.id)
    assert found is not None
    assert (found.state, found.active) == ("FAILED", False)
    assert "there is no supervisor 'flights'" in str(found.status["errorMsg"])


def test_duties_run_while_a_term_lasts(world: DutiesWorld) -> None:
    world.ask(world.overlord.start())
    world.settle(3.5)
    (duty,) = world.duties
    assert duty.rounds == 3
    assert world.ask(duty.tools.slots()) == 0
    world.ask(world.overlord.stop())
    world.settle(5)
    assert duty.rounds == 3


def test_a_task_without_a_name_gets_one_and_is_explained(world: DutiesWorld) -> None:
    world.ask(world.overlord.start())
    name = world.ask(world.overlord.task_service.submit({"type": "noop", "dataSource": "d"}))
    assert name.startswith("noop_d_token_")
    (wait,) = world.ask(world.overlord.task_service.why(name))
    assert wait.to_json()["workers"] == [
        {"worker": "", "reason": "there is no worker: start one", "taskIds": []}
    ]
    assert world.ask(world.overlord.task_service.shutdown_all("d")) == 1
    with pytest.raises(NotFound, match="not active"):
        world.ask(world.overlord.task_service.why(name))


def test_a_worker_config_is_kept_for_the_next_term(world: DutiesWorld) -> None:
    world.ask(world.overlord.start())
    config: dict[str, Any] = {"selectStrategy": {"type": "fillCapacity"}}
    world.ask(world.overlord.task_service.set_worker_config(config, author="me", comment="try"))
    assert world.overlord.task_service.worker_config().select_strategy.type == "fillCapacity"
    (entry,) = world.metadata.audit.list("worker.config")
    assert (entry.author, entry.comment) == ("me", "try")


def test_of_two_worker_configs_at_once_the_last_that_is_stored_is_gone_by(
    world: DutiesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ask(world.overlord.start())
    taken_up, desk, asked = [], world.overlord.task_service, []
    configs: list[dict[str, Any]] = [
        {"selectStrategy": {"type": name}} for name in ("equalDistribution", "fillCapacity")
    ]
    monkeypatch.setattr(TaskRunner, "configure", lambda _runner, config: taken_up.append(config))
    store = world.metadata.config.compare_and_set

    def and_another(*args: Any, **more: Any) -> bool:
        monkeypatch.setattr(world.metadata.config, "compare_and_set", store)
        asked.append(desk.set_worker_config(configs[1]))
        return store(*args, **more)

    monkeypatch.setattr(world.metadata.config, "compare_and_set", and_another)
    world.ask(desk.set_worker_config(configs[0]))
    world.ask(asked[0])
    assert [config.select_strategy.type for config in taken_up] == [
        "equalDistribution",
        "fillCapacity",
    ]
    assert desk.worker_config() == taken_up[-1]
