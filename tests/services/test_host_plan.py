"""What `penstock up` launches: which Sparks there are, and who asks which."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.host_memory import total_memory_bytes
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.host_plan import HostPlan
from penstock.services.host.memory import query_spark
from penstock.services.host.restart_policy import ENDS_BEFORE_READY_MAX, FLOW_ENDS_MAX
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.spark.connect.class_archive import makes_archive

PYTHON = ["broker", "overlord", "flow", "worker", "router"]


@pytest.fixture
def given(tmp_path: Path) -> PenstockOptions:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    anywhere = HostPort("127.0.0.1", 0)
    return PenstockOptions(
        data_dir=folder.path, http=anywhere, broker_http=anywhere, broker_tcp=anywhere
    )


def opened(options: PenstockOptions) -> HostPlan:
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(options.data_dir / "cache")}
    plan = HostPlan(options, DataFolder(options.data_dir), environment, SystemClock())
    plan.open()
    plan.close()
    return plan


def names(plan: HostPlan) -> list[str]:
    return [child.name for child in plan.children()]


def test_queries_and_tasks_share_one_spark_if_told(given: PenstockOptions) -> None:
    plan = opened(dataclasses.replace(given, query_memory="none"))
    assert names(plan) == ["spark", *PYTHON]
    assert plan.options.spark_connect is not None
    assert plan.options.query_connect is None


def test_queries_have_a_spark_of_their_own(given: PenstockOptions) -> None:
    plan = opened(dataclasses.replace(given, query_memory="1g"))
    assert names(plan) == ["spark", "queries", *PYTHON]
    assert plan.options.query_connect is not None
    assert plan.options.query_connect != plan.options.spark_connect


def test_the_flow_may_end_once_more_than_holds_its_components(given: PenstockOptions) -> None:
    ends = {one.name: one.ends_before_ready_max for one in opened(given).children()}
    assert ends["flow"] == FLOW_ENDS_MAX + 1
    assert set(ends.values()) == {ENDS_BEFORE_READY_MAX, FLOW_ENDS_MAX + 1}


def test_no_stop_waits_for_a_class_archive(given: PenstockOptions) -> None:
    """On a busy machine Spark wrote it for more than 30 s after Ctrl-C, and was killed."""
    plan = opened(dataclasses.replace(given, query_memory="1g"))
    made = {one.name: one.command(0).argv for one in plan.children()[:2]}
    assert {name: makes_archive(argv) for name, argv in made.items()} == {
        "spark": False,
        "queries": False,
    }


def test_queries_have_a_spark_of_their_own_by_default_where_memory_allows(
    given: PenstockOptions,
) -> None:
    """Two heaps of 2 GiB, a third more for each, and 1.5 GiB of Python, in 3/4 of the memory."""
    gib = 1 << 30
    assert query_spark(given, 16 * gib).memory == "2g"
    assert query_spark(given, 8 * gib).memory == "1g"
    small = query_spark(given, 7 * gib)
    assert small.memory is None
    assert small.is_warning
    assert "7.0 GiB of memory are less than the 7.3 GiB" in small.reason
    assert query_spark(dataclasses.replace(given, spark_memory="512m"), 6 * gib).memory == "1g"
    assert query_spark(dataclasses.replace(given, query_memory="1g"), gib).memory == "1g"
    assert query_spark(given, None).memory is None


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"query_memory": "none"},
        {"query_connect": "sc://b:1"},
        {"spark_connect": "sc://a:1"},
        {"spark_master": "spark://h:7077"},
    ],
)
def test_no_second_spark_is_started_where_it_would_be_in_the_way(
    given: PenstockOptions, elsewhere: dict[str, str]
) -> None:
    found = query_spark(dataclasses.replace(given, **elsewhere), 64 << 30)
    assert found.memory is None
    assert not found.is_warning


def test_the_memory_of_a_control_group_counts(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    assert total_memory_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    (group / "memory.max").write_text("max\n")
    assert total_memory_bytes(tmp_path) == 16_384_000 * 1024
    (group / "memory.max").write_text("4294967296\n")
    assert total_memory_bytes(tmp_path) == 4 << 30


def test_the_jvms_of_both_sparks_have_the_options_that_are_given(given: PenstockOptions) -> None:
    two = dataclasses.replace(given, query_memory="1g", spark_java_options=("-Da=b c", "-Xint"))
    plan = opened(two)
    jvms = [child for child in plan.children() if child.name not in PYTHON]
    commands = [child.command(0).argv for child in jvms]
    for argv in commands:
        # Behind ours, as the last one counts, and before the class that is run.
        place = argv.index("-Xint")
        assert argv[place - 1] == "-Da=b c"
        assert argv.index("-Xmx2g" if argv is commands[0] else "-Xmx1g") < place < argv.index("-cp")


@pytest.mark.parametrize("name", ["a*", "a[b]"])
def test_a_deep_storage_that_spark_cannot_read_is_refused(
    given: PenstockOptions, name: str
) -> None:
    folder = str(given.data_dir.parent / name)
    with pytest.raises(InvalidRequest, match=r"--deep-storage"):
        opened(dataclasses.replace(given, deep_storage=folder))


def test_tasks_run_elsewhere_and_queries_here(given: PenstockOptions) -> None:
    elsewhere = dataclasses.replace(given, spark_connect="sc://cluster:1", query_memory="1g")
    assert names(opened(elsewhere)) == ["queries", *PYTHON]


def test_both_run_elsewhere(given: PenstockOptions) -> None:
    both = dataclasses.replace(given, spark_connect="sc://a:1", query_connect="sc://b:1")
    plan = opened(both)
    assert names(plan) == PYTHON
    assert plan.options.query_connect == "sc://b:1"


def test_two_sparks_for_queries_are_one_too_many(given: PenstockOptions) -> None:
    with pytest.raises(InvalidRequest, match="one of them"):
        opened(dataclasses.replace(given, query_memory="1g", query_connect="sc://b:1"))


def test_a_spark_keeps_its_address_when_the_launcher_is_started_again(
    given: PenstockOptions,
) -> None:
    """A worker beside this Penstock was given it."""
    two = dataclasses.replace(given, query_memory="1g")
    before = opened(two).options
    again = opened(two).options
    assert (again.spark_connect, again.query_connect) == (
        before.spark_connect,
        before.query_connect,
    )
    assert before.spark_connect is not None
    port = int(before.spark_connect.split(":")[2].split("/")[0])
    with socket.create_server(("127.0.0.1", port)):
        other = opened(two).options
    assert other.spark_connect != before.spark_connect
    assert other.query_connect == before.query_connect


def test_a_spark_elsewhere_is_no_address_for_one_here(given: PenstockOptions) -> None:
    opened(dataclasses.replace(given, spark_connect="sc://127.0.0.1:15002"))
    here = opened(given).options.spark_connect
    assert here is not None
    assert ":15002" not in here
