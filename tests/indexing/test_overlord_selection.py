"""Which worker gets which task: each strategy, limits, categories, and what must never happen."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.indexing.overlord.runner.runner_options import BlacklistOptions
from penstock.indexing.overlord.runner.selection import (
    Kind,
    PendingTask,
    PendingTasks,
    SelectionRules,
    WorkerCandidate,
    place,
    type_limit,
)
from penstock.indexing.overlord.runner.slot_reasons import (
    SlotReason,
    SurveyedWorker,
    slot_reasons,
    slots_text,
)
from penstock.indexing.overlord.runner.worker_config import parse_worker_config
from penstock.indexing.overlord.runner.worker_eligibility import WorkerBlacklist


def worker(name: str, capacity: int = 4, used: int = 0, **more: Any) -> WorkerCandidate:
    return WorkerCandidate(name, f"{name}:8091", capacity, used, more.pop("category", "c"), **more)


def task(
    name: str,
    priority: int = 50,
    *,
    kind: str = "index_parallel",
    datasource: str = "d",
    number: int = 0,
    group: str | None = None,
) -> PendingTask:
    return PendingTask(name, Kind(kind, datasource, "s"), priority, number, group or name)


def pending(*tasks: PendingTask) -> PendingTasks:
    made = PendingTasks()
    for one in tasks:
        made.add(one)
    return made


def rules(select_strategy: Mapping[str, object] | None = None, **more: float) -> SelectionRules:
    config = parse_worker_config({"selectStrategy": cast("dict[str, Any]", select_strategy or {})})
    return SelectionRules(config.select_strategy, **more)


def where(
    tasks: Sequence[PendingTask],
    workers: Sequence[WorkerCandidate],
    rule: SelectionRules | None = None,
) -> dict[str, str]:
    return {t.id: name for t, name in place(pending(*tasks), workers, rule or rules())}


def many(count: int, **more: Any) -> list[PendingTask]:
    return [task(f"t{n}", number=n, **more) for n in range(count)]


def test_equal_distribution_takes_the_worker_with_most_free_slots() -> None:
    workers = [worker("a", 4, 2, room=9), worker("b", 4, 0, room=9)]
    assert where(many(3), workers) == {"t0": "b", "t1": "b", "t2": "a"}


def test_fill_capacity_takes_the_worker_with_most_used_slots() -> None:
    workers = [worker("a", 4, 2, room=9), worker("b", 4, 0, room=9)]
    placed = where(many(3), workers, rules({"type": "fillCapacity"}))
    assert placed == {"t0": "a", "t1": "a", "t2": "b"}


def test_the_more_urgent_goes_first_then_the_older() -> None:
    tasks = [task("low", 0), task("late", 75, number=2), task("early", 75, number=1)]
    assert list(where(tasks, [worker("a", 2, room=9)])) == ["early", "late"]


def test_no_worker_is_handed_more_than_it_may_be_at_a_time() -> None:
    assert where(many(3), [worker("a", 9, room=2)]) == {"t0": "a", "t1": "a"}


def test_replicas_never_share_a_worker() -> None:
    replicas = [task("r1", group="g"), task("r2", group="g", number=1), task("x", number=2)]
    assert where(replicas, [worker("a", 9, room=9)]) == {"r1": "a", "x": "a"}
    assert where(replicas[:1], [worker("a", groups={"g"})]) == {}


AFFINITY = {"affinity": {"d": ["a"], "other": ["o:8091"]}}


@pytest.mark.parametrize("kind", ["equalDistribution", "fillCapacity"])
@pytest.mark.parametrize("strong", [True, False])
def test_affinity_prefers_hosts_and_a_strong_one_takes_no_other(kind: str, strong: bool) -> None:
    rule = rules({"type": f"{kind}WithAffinity", "affinityConfig": {**AFFINITY, "strong": strong}})
    workers = [worker("a", 1), worker("b", 9), worker("o", 9)]
    found = where(many(2), workers, rule)
    assert found == ({"t0": "a"} if strong else {"t0": "a", "t1": "b"})
    # A datasource without affinity keeps away from the hosts of others.
    assert where([task("x", datasource="z")], [worker("a"), worker("o")], rule) == {}


@pytest.mark.parametrize("strong", [True, False])
def test_categories_go_by_supervisor_datasource_and_default(strong: bool) -> None:
    config = {
        "defaultCategory": "x",
        "categoryAffinity": {"d2": "y"},
        "supervisorIdCategoryAffinity": {"s3": "z"},
    }
    spec = {"categoryMap": {"index_parallel": config}, "strong": strong}
    rule = rules({"type": "equalDistributionWithCategorySpec", "workerCategorySpec": spec})
    names = ("x", "y", "z", "other")
    workers = [worker(n, category=n) for n in names]
    tasks = [
        task("1"),
        task("2", datasource="d2", number=1),
        PendingTask("3", Kind("index_parallel", "d2", "s3"), 50, 2, "3"),
    ]
    assert where(tasks, workers, rule) == {"1": "x", "2": "y", "3": "z"}
    assert where(tasks[:1], [worker("other", category="other")], rule) == (
        {} if strong else {"1": "other"}
    )
    assert where([task("k", kind="kill")], [worker("other")], rule) == {"k": "other"}


def test_limits_by_type_and_the_share_of_parallel_tasks() -> None:
    limited = rules(
        {"taskLimits": {"maxSlotCountByType": {"kill": 1}, "maxSlotRatioByType": {"compact": 0.5}}},
        parallel_slot_ratio=0.25,
    )
    eight = worker("a", 8, room=9)
    assert [type_limit(eight, t, limited) for t in ("kill", "compact", "index_parallel")] == [
        1,
        4,
        2,
    ]
    assert len(where(many(5), [eight], limited)) == 2
    assert type_limit(worker("b", 1), "compact", limited) == 1


def test_a_kind_without_room_does_not_hold_up_others() -> None:
    rule = rules(
        {
            "type": "equalDistributionWithAffinity",
            "affinityConfig": {"affinity": {"d": ["nowhere"]}, "strong": True},
        }
    )
    tasks = [*many(1000), task("x", 0, datasource="z", number=5000)]
    assert where(tasks, [worker("a")], rule) == {"x": "a"}


@given(st.data())
def test_nothing_is_ever_overfilled(data: st.DataObject) -> None:
    workers = [
        worker(f"w{n}", data.draw(st.integers(0, 4)), room=data.draw(st.integers(0, 3)))
        for n in range(data.draw(st.integers(0, 4)))
    ]
    room = {w.name: min(w.room, w.capacity) for w in workers}
    tasks = [
        task(
            f"t{n}",
            data.draw(st.integers(0, 3)),
            datasource=data.draw(st.sampled_from("de")),
            number=n,
            group=data.draw(st.sampled_from(["g", "h", None])),
        )
        for n in range(data.draw(st.integers(0, 12)))
    ]
    placed = place(pending(*tasks), workers, rules())
    assert len({t.id for t, _ in placed}) == len(placed)
    assert all(sum(to == name for _, to in placed) <= room[name] for name in room)
    pairs = [(t.availability_group, to) for t, to in placed]
    assert len(set(pairs)) == len(pairs)
    # Whatever waits could not go anywhere: no worker has room for it that lacks its replica.
    left = {t.id for t in tasks} - {t.id for t, _ in placed}
    for one in tasks:
        if one.id in left:
            assert all(
                w.free <= 0 or w.room <= 0 or one.availability_group in w.groups for w in workers
            )


def test_a_pending_task_can_be_taken_out() -> None:
    waiting = pending(*many(3))
    waiting.remove("t0")
    waiting.remove("t0")
    waiting.add(task("t1", number=99))
    assert [t.id for t, _ in place(waiting, [worker("a", room=9)], rules())] == ["t1", "t2"]
    assert len(waiting) == 2
    assert "t1" in waiting


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_tasks_that_are_given_back_keep_their_age(order: Sequence[int], removed: set[int]) -> None:
    tasks = many(6)
    waiting = pending(*tasks)
    for number in order:
        waiting.remove(f"t{number}")
    for number in order:
        waiting.add(tasks[number])
    for number in removed:
        waiting.remove(f"t{number}")
    wanted = [f"t{number}" for number in range(6) if number not in removed]
    for _ in range(2):
        assert [t.id for t in waiting.of_kind(tasks[0].kind)] == wanted


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"selectStrategy": {"type": "javascript"}}, "selectStrategy.type"),
        ({"selectStrategy": {"affinityconfig": {}}}, "affinityConfig"),
        ({"autoScaler": {}}, "the overlord does not start workers"),
        ("{", "not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"a":' * 100_000, "nested deeper than 100"),
        ('{"type": "default", "type": "other"}', "type"),
    ],
)
def test_a_wrong_worker_config_says_where(config: str | dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        parse_worker_config(config)


def test_a_worker_config_goes_there_and_back() -> None:
    config = parse_worker_config({"type": "default", "selectStrategy": {"type": "fillCapacity"}})
    assert parse_worker_config(config.to_json()) == config


def test_a_reason_of_many_workers_is_told_once() -> None:
    full = [SlotReason(f"w{n}", "all of its 2 slots are taken") for n in range(8)]
    off = SlotReason("off", "it is disabled")
    assert (
        slots_text([*full[:2], off]) == "w0, w1: all of its 2 slots are taken; off: it is disabled"
    )
    assert slots_text(full) == "w0, w1, w2, w3, w4 and 3 more: all of its 2 slots are taken"
    assert (
        slots_text([SlotReason("", "there is no worker: start one")])
        == "there is no worker: start one"
    )


def test_why_a_task_has_no_worker() -> None:
    rule = rules(
        {
            "type": "fillCapacityWithCategorySpec",
            "workerCategorySpec": {
                "categoryMap": {"kill": {"defaultCategory": "big"}},
                "strong": True,
            },
        }
    )
    full = SurveyedWorker(worker("full", 1, 1), ("x",))
    off = SurveyedWorker(worker("off"), (), "it is disabled")
    replica = SurveyedWorker(worker("replica", groups={"g"}), ())
    reasons = slot_reasons(task("t", group="g"), [full, off, replica], rule)
    assert [(r.worker, r.task_ids) for r in reasons] == [
        ("full", ("x",)),
        ("off", ()),
        ("replica", ()),
    ]
    assert [r.reason for r in reasons] == [
        "its only slot is taken: suspend a supervisor, or give the worker more (--worker-capacity)",
        "it is disabled",
        "it has a replica of this task",
    ]
    (reason,) = slot_reasons(task("t", kind="kill"), [full], rule)
    assert "no worker of category 'big'" in slots_text([reason])
    assert slots_text(slot_reasons(task("t"), [], rule)) == "there is no worker: start one"


def failures(
    count: int, workers: int, *, listed: Sequence[str] = (), options: BlacklistOptions | None = None
) -> tuple[WorkerBlacklist, list[bool]]:
    made = WorkerBlacklist(options or BlacklistOptions())
    for name in listed:
        for _ in range(6):
            made.failed(name, 0, 100)
    return made, [made.failed("w", 0, workers) for _ in range(count)]


def test_a_worker_is_listed_after_more_failures_in_a_row_than_it_may_have() -> None:
    made, told = failures(6, 5)
    assert told == [False] * 5 + [True]
    assert made.until_s("w", 899) == 900
    assert made.until_s("w", 900) is None
    assert made.failed("w", 901, 5) is False  # it counts anew


def test_a_success_takes_a_worker_off_the_list() -> None:
    made, _ = failures(6, 5)
    made.succeeded("w")
    assert made.until_s("w", 0) is None


@pytest.mark.parametrize(
    ("workers", "listed", "takes"), [(4, 0, False), (5, 0, True), (9, 1, False), (10, 1, True)]
)
def test_at_most_a_fifth_of_the_workers_is_listed(workers: int, listed: int, takes: bool) -> None:
    names = [f"l{n}" for n in range(listed)]
    assert failures(6, workers, listed=names)[1][-1] is takes


def test_many_datasources_cost_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pushes = []
    push = heapq.heappush
    monkeypatch.setattr(heapq, "heappush", lambda *pushed: pushes.append(1) or push(*pushed))
    tasks = [task(f"t{n}", datasource=f"d{n}", number=n) for n in range(100)]
    assert len(where(tasks, [worker(f"w{n}", room=4) for n in range(50)])) == 100
    assert len(pushes) < 300
