"""``/stats/topics``: pages of the list of topics, searched, sorted and summed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.options import BrokerOptions
from penstock.core.access.access_control import AccessControl
from tests.broker.broker_access_kit import Installation, bearer
from tests.broker.broker_kit import RunningBroker

# Messages by topic; `b` has the longest ones.
MESSAGES = {"clicks": [b"1"] * 3, "Clicks-late": [b"1"], "orders": [b"1"] * 5, "b": [b"x" * 4_000]}
BY_ORDER = {
    "name": ["Clicks-late", "b", "clicks", "orders"],
    "messages": ["orders", "clicks", "Clicks-late", "b"],
    "depth": ["orders", "clicks", "Clicks-late", "b"],
    "bytes": ["b"],
    "in_flight": ["Clicks-late", "b", "clicks", "orders"],
}


def opened(folder: Path, access: AccessControl | None = None) -> RunningBroker:
    options = BrokerOptions(folder=str(folder), http_port=0, tcp_port=0)
    return RunningBroker(options, access=access)


def fill(broker: RunningBroker, headers: dict[str, str] | None = None) -> None:
    for topic, messages in MESSAGES.items():
        body = b"\n".join(messages)
        assert broker.ask("POST", f"/mpub?topic={topic}", body, headers).status == 200
    for topic, channel in (("clicks", "archive"), ("clicks", "alerts"), ("orders", "archive")):
        target = f"/channel/create?topic={topic}&channel={channel}"
        assert broker.ask("POST", target, headers=headers).status == 200


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with opened(tmp_path_factory.mktemp("broker")) as running:
        fill(running)
        yield running


def listed(
    broker: RunningBroker, query: str = "", headers: dict[str, str] | None = None
) -> dict[str, Any]:
    answer = broker.ask("GET", f"/stats/topics?{query}", headers=headers)
    assert answer.status == 200, answer.body
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [row["topic_name"] for row in found["page"]]


@pytest.mark.parametrize("order", BY_ORDER)
def test_topics_are_sorted(broker: RunningBroker, order: str) -> None:
    wanted = BY_ORDER[order]
    assert names(listed(broker, f"order={order}"))[: len(wanted)] == wanted


def test_numbers_of_a_topic_are_sums_over_its_channels(broker: RunningBroker) -> None:
    (row,) = listed(broker, "search=clicks&limit=1&skip=1")["page"]
    assert row["topic_name"] == "clicks"
    # The first channel got the three messages; the second one begins empty.
    assert (row["message_count"], row["topic_depth"], row["depth"]) == (3, 0, 3)
    assert (row["channel_count"], row["client_count"], row["paused"]) == (2, 0, False)


def test_sums_are_those_of_all_topics_whatever_is_listed(broker: RunningBroker) -> None:
    found = listed(broker, "search=zzz")
    assert (found["topics"], found["found"], found["page"]) == (4, 0, [])
    assert (found["message_count"], found["depth"]) == (10, 8)


def test_a_search_ignores_case_and_pages_follow_each_other(broker: RunningBroker) -> None:
    assert names(listed(broker, "search=CLICKS")) == ["Clicks-late", "clicks"]
    pages = [names(listed(broker, f"limit=3&skip={skip}")) for skip in (0, 3, 6)]
    assert pages == [BY_ORDER["name"][:3], BY_ORDER["name"][3:], []]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("order=size", "INVALID_ORDER"),
        ("limit=501", "INVALID_LIMIT"),
        ("limit=-1", "INVALID_LIMIT"),
        ("skip=x", "INVALID_SKIP"),
    ],
)
def test_a_wrong_parameter_is_refused(broker: RunningBroker, query: str, code: str) -> None:
    answer = broker.ask("GET", f"/stats/topics?{query}")
    assert (answer.status, json.loads(answer.body)) == (400, {"message": code})


def test_only_visible_topics_and_channels_are_listed_and_counted(tmp_path: Path) -> None:
    kit = Installation(tmp_path / "access")
    admin, some = bearer(kit.token("admin", "admin")), bearer(kit.token("some", "some"))
    kit.rules(
        '[roles.some]\nallow = ["read topic:clicks", "read topic:orders", '
        '"read channel:clicks/alerts"]\n'
    )
    with opened(tmp_path / "broker", access=kit.control) as broker:
        fill(broker, admin)
        found = listed(broker, headers=some)
        assert names(found) == ["clicks", "orders"]
        assert (found["topics"], found["message_count"], found["depth"]) == (2, 8, 0)
        assert [row["channel_count"] for row in found["page"]] == [1, 0]
        assert broker.ask("GET", "/stats/topics").status == 401
