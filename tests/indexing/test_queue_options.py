"""What an operator sets of the task queue, from the option to the task that it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import JsonValue

from penstock.core.errors import InvalidRequest
from penstock.indexing.overlord.errors import QueueFull
from penstock.indexing.overlord.runner.runner_options import RunnerOptions
from penstock.indexing.overlord.task_queue import TaskQueueOptions
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.batch.batch_task_specs import BatchTaskSpec, parse_batch_task
from penstock.services.options import resolution
from penstock.services.roles.overlord import overlord_options
from tests.indexing.queue_kit import TaskQueueWorld, noop, submit

Make = Callable[[TaskQueueOptions], TaskQueueWorld]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as open_worlds:

        def made(options: TaskQueueOptions) -> TaskQueueWorld:
            world = TaskQueueWorld(tmp_path, options)
            open_worlds.callback(world.metadata.close)
            return world

        yield made


def set_by(**given: object) -> TaskQueueOptions:
    """What the overlord makes of options of the command line."""
    return overlord_options(resolution.resolve(given, {})).queue


def inputs(task_id: str, files: int = 1) -> BatchTaskSpec:
    source: JsonValue = {
        "type": "local",
        "files": [f"/data/{number}.json" for number in range(files)],
    }
    return parse_batch_task(
        {
            "type": "index_parallel",
            "id": task_id,
            "spec": {
                "dataSchema": {
                    "dataSource": "d",
                    "timestampSpec": {"column": "time", "format": "millis"},
                    "dimensionsSpec": {"dimensions": ["carrier"]},
                    "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
                },
                "ioConfig": {
                    "type": "index_parallel",
                    "inputSource": source,
                    "inputFormat": {"type": "json"},
                },
            },
        }
    )


def test_a_full_queue_names_the_option(make: Callable[..., TaskQueueWorld]) -> None:
    world = make(set_by(task_queue_size="1"))
    submit(world, noop("a"))
    with pytest.raises(QueueFull, match="larger --task-queue-size"):
        submit(world, noop("b"))


def test_a_task_that_is_too_large_names_the_option(make: Callable[..., TaskQueueWorld]) -> None:
    world = make(set_by(task_payload_size="1m"))
    submit(world, inputs("a", files=10_000))
    with pytest.raises(InvalidRequest, match=r"1048576 .* larger --task-payload-size"):
        submit(world, inputs("b", files=100_000))


def test_a_silent_worker_is_lost_after_as_long_as_was_set(
    make: Callable[..., TaskQueueWorld],
) -> None:
    world = make(set_by(worker_timeout="30s"))
    worker = world.worker("w")
    submit(world, noop("a"))
    worker.error = InvalidRequest("it is away")
    world.settle(25)
    assert world.status("a")[0] == "RUNNING"
    world.settle(10)
    state, error = world.status("a")
    assert state == "FAILED"
    assert "worker w has not answered" in str(error)


@pytest.mark.parametrize("timeout", ["5s", "15s", "2m"])
def test_a_worker_that_has_nothing_to_say_is_not_lost(
    make: Callable[..., TaskQueueWorld], timeout: str
) -> None:
    """A question waits at it for less than the time after which it would be."""
    options = set_by(worker_timeout=timeout)
    world = make(options)
    worker = world.worker("w")
    world.settle(2)
    assert 0 < worker.asked_wait_ms <= options.runner.worker_timeout_ms / 4


def test_a_time_in_which_no_worker_can_answer_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"--worker-timeout.*less than 5 s"):
        set_by(worker_timeout="4s")


def test_a_worker_that_is_too_old_gets_no_task(make: Callable[..., TaskQueueWorld]) -> None:
    world = make(set_by(worker_version_min="2"))
    old, new = world.worker("old", capacity=9, version="1"), world.worker("new", version="2")
    submit(world, noop("a"), noop("b"))
    assert (old.taken, new.taken) == ([], ["a", "b"])
    world.announced.remove(new)
    world.settle(2)
    submit(world, noop("c"))
    (wait,) = world.why("c")
    assert "version '1' is too old" in wait.text


def test_parallel_tasks_take_their_share_of_a_workers_slots(
    make: Callable[..., TaskQueueWorld],
) -> None:
    world = make(TaskQueueOptions(runner=RunnerOptions(parallel_slot_ratio=0.5)))
    worker = world.worker("w", capacity=4)
    many = ["p1", "p2", "p3"]
    submit(world, *(inputs(one) for one in many), noop("n"))
    assert sorted(worker.taken) == ["n", "p1", "p2"]
    worker.say("p1", TaskState.SUCCESS)
    world.settle(2)
    assert sorted(worker.taken) == ["n", *many]


def test_the_cluster_says_what_a_tasks_context_does_not(
    make: Callable[..., TaskQueueWorld],
) -> None:
    world = make(set_by(task_context='{"useConcurrentLocks": true, "priority": 60}'))
    own = inputs("own").model_copy(update={"context": {"priority": 10, "mine": 1}})
    submit(world, inputs("plain"), own)
    tasks = {task_id: one.task for task_id, one in world.queue.index.all().items()}
    assert tasks["plain"].priority == 60
    assert tasks["plain"].context == {"useConcurrentLocks": True, "priority": 60}
    assert tasks["own"].context == {"useConcurrentLocks": True, "priority": 10, "mine": 1}
    row = world.metadata.tasks.get("own")
    assert row is not None
    assert row.payload["context"] == tasks["own"].context, "the next overlord reads it there"


def test_a_name_of_a_context_that_is_null_says_nothing(make: Callable[..., TaskQueueWorld]) -> None:
    """As everywhere in a spec: the task would have neither the cluster's value nor one of its."""
    world = make(set_by(task_context='{"useConcurrentLocks": true, "priority": 60}'))
    given = {"useConcurrentLocks": None, "priority": None, "mine": None}
    submit(world, inputs("nulls").model_copy(update={"context": given}))
    task = world.queue.index.all()["nulls"].task
    assert task.priority == 60
    assert task.context == {"useConcurrentLocks": True, "priority": 60, "mine": None}


def test_a_minor_compaction_without_its_lock_is_refused_unless_the_cluster_gives_it(
    make: Callable[..., TaskQueueWorld],
) -> None:
    day = "2026-01-01/P1D"
    one: JsonValue = {"itvl": day, "ver": "v", "part": 0}
    given: JsonValue = {"type": "minor", "interval": day, "segments": [one]}
    task = parse_batch_task(
        {
            "type": "compact",
            "id": "minor",
            "dataSource": "d",
            "ioConfig": {"type": "compact", "inputSpec": given, "dropExisting": True},
        }
    )
    with pytest.raises(InvalidRequest, match=r"context\.useConcurrentLocks: must be true"):
        make(set_by()).queue.add(task)
    world = make(set_by(task_context='{"useConcurrentLocks": true}'))
    submit(world, task)
    assert "minor" in world.queue.index.all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"priority": "high"}', "--task-context: priority: must be a whole number"),
        ('{"forceTimeChunkLock": 7}', "--task-context: forceTimeChunkLock: must be true or false"),
    ],
)
def test_a_context_that_no_task_may_have_is_refused_at_the_start(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        set_by(task_context=text)


@pytest.mark.parametrize("text", ["", "[]", "{", "3"])
def test_a_context_is_an_object(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--task-context: .* is not a JSON object"):
        set_by(task_context=text)
