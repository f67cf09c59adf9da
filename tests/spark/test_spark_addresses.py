"""Addresses of Spark: malformed ones are refused, and no message contains a token."""

from __future__ import annotations

import pytest

from penstock.core.errors import InvalidRequest
from penstock.flow.processor import InvalidConfiguration
from penstock.services.options import resolution
from penstock.spark.connect.connect_address import ConnectAddress, shown
from penstock.spark.connect.spark_sessions import SparkSessionOptions
from penstock.spark.flow.sql import SparkSQL

MALFORMED = {
    "sc://h:15099;token=hush": "sc://h:15099…",
    "sc://h:1/x;token=hush": "sc://h:1…",
    "sc://h:1?;token=hush": "sc://h:1…",
    "sc://u:hush@h:1/": "sc://…",
    "sc://u:123@h:1/;token=hush": "sc://…",
    "sc://h:1/;token=hush=1": "sc://h:1…",
    "sc://h:1/;token=hush/1": "sc://h:1…",
    "sc://h:1/;token=a#hush": "sc://h:1…",
    "sc://h:1/;hush": "sc://h:1…",
    "sc://h:1/;user_id=a;;token=hush": "sc://h:1…",
    "sc://h:1/;token=hush\n": "sc://h:1…",
    "sc://h:hush": "sc://…",
    "sc://;token=hush": "sc://…",
    "sc://h:70000/;token=hush": "sc://h:70000…",
}
OTHER_FORMS = (
    "SC://h:1/;token=hush",
    "h:1/;token=hush",
    "http://h:1/;token=hush",
    " sc://h:1/hush",
)


@pytest.mark.parametrize("address", MALFORMED)
def test_a_malformed_address_is_refused_without_its_token(address: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SparkSessionOptions(address)
    message = str(refused.value)
    assert message.startswith(f"invalid address of Spark {MALFORMED[address]}: write sc://HOST")
    assert "hush" not in message
    assert "123" not in message
    assert shown(address) == "sc://…"


@pytest.mark.parametrize("address", OTHER_FORMS)
def test_a_text_of_another_form_is_not_quoted(address: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid address of Spark: use") as refused:
        SparkSessionOptions(address)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("option", ["spark_connect", "query_connect"])
@pytest.mark.parametrize("address", [*MALFORMED, *OTHER_FORMS[:3]])
def test_a_malformed_address_is_refused_as_an_option(option: str, address: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid address of Spark") as refused:
        resolution.resolve({}, {f"PENSTOCK_{option.upper()}": f"{address}x"})
    assert "hush" not in str(refused.value)


def test_a_processor_does_not_show_the_token_of_a_malformed_address() -> None:
    properties = {"input_format": "csv", "out": "SELECT 1", "spark": "sc://h:1;token=hush"}
    with pytest.raises(InvalidConfiguration) as refused:
        SparkSQL.configured(properties)
    assert [problem.place for problem in refused.value.problems] == ["spark"]
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*, 4]", "yarn", "k8s://https://h"])
def test_a_classic_master_is_accepted(master: str) -> None:
    assert not SparkSessionOptions(master).is_connect


def test_an_address_is_shown_without_parameters() -> None:
    address = ConnectAddress.parse("sc://Spark.Example/;use_ssl=true;token=a%3D%2F;x-auth=hush")
    assert (address.host, address.port) == ("spark.example", 15002)
    assert address.parameters == {"use_ssl": "true", "token": "a=/", "x-auth": "hush"}
    assert str(address) == "sc://spark.example:15002"
    assert "hush" not in repr(address)
    assert shown("sc://[::1]:7/;token=hush") == "sc://[::1]:7"
    assert shown("sc://h:1/;") == shown("sc://h:1/") == shown("sc://h:1") == "sc://h:1"
