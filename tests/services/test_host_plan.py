"""What `penstock up` launches: which Sparks there are, and who asks which."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest
from penstock.services.config import Address, Options
from penstock.services.host.datafolder import DataFolder
from penstock.services.host.plan import HostPlan

PYTHON = ["broker", "overlord", "flow", "worker", "router"]


@pytest.fixture
def given(tmp_path: Path) -> Options:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    anywhere = Address("127.0.0.1", 0)
    return Options(data_dir=folder.path, http=anywhere, broker_http=anywhere, broker_tcp=anywhere)


def opened(options: Options) -> HostPlan:
    plan = HostPlan(options, DataFolder(options.data_dir), {})
    plan.open()
    plan.close()
    return plan


def names(plan: HostPlan) -> list[str]:
    return [child.name for child in plan.children()]


def test_queries_and_tasks_share_one_spark(given: Options) -> None:
    plan = opened(given)
    assert names(plan) == ["spark", *PYTHON]
    assert plan.options.spark_connect is not None
    assert plan.options.query_connect is None


def test_queries_have_a_spark_of_their_own(given: Options) -> None:
    plan = opened(dataclasses.replace(given, query_memory="1g"))
    assert names(plan) == ["spark", "queries", *PYTHON]
    assert plan.options.query_connect is not None
    assert plan.options.query_connect != plan.options.spark_connect


def test_the_jvms_of_both_sparks_have_the_options_that_are_given(given: Options) -> None:
    two = dataclasses.replace(given, query_memory="1g", spark_java_options=("-Da=b c", "-Xint"))
    plan = opened(two)
    jvms = [child for child in plan.children() if child.name not in PYTHON]
    commands = [child.command(0).argv for child in jvms]
    for argv in commands:
        # Behind ours, as the last one counts, and before the class that is run.
        place = argv.index("-Xint")
        assert argv[place - 1] == "-Da=b c"
        assert argv.index("-Xmx2g" if argv is commands[0] else "-Xmx1g") < place < argv.index("-cp")


def test_tasks_run_elsewhere_and_queries_here(given: Options) -> None:
    elsewhere = dataclasses.replace(given, spark_connect="sc://cluster:1", query_memory="1g")
    assert names(opened(elsewhere)) == ["queries", *PYTHON]


def test_both_run_elsewhere(given: Options) -> None:
    both = dataclasses.replace(given, spark_connect="sc://a:1", query_connect="sc://b:1")
    plan = opened(both)
    assert names(plan) == PYTHON
    assert plan.options.query_connect == "sc://b:1"


def test_two_sparks_for_queries_are_one_too_many(given: Options) -> None:
    with pytest.raises(InvalidRequest, match="one of them"):
        opened(dataclasses.replace(given, query_memory="1g", query_connect="sc://b:1"))


def test_a_spark_keeps_its_address_when_the_launcher_is_started_again(given: Options) -> None:
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


def test_a_spark_elsewhere_is_no_address_for_one_here(given: Options) -> None:
    opened(dataclasses.replace(given, spark_connect="sc://127.0.0.1:15002"))
    here = opened(given).options.spark_connect
    assert here is not None
    assert ":15002" not in here
