"""IDENTIFY: what may be asked, what is answered, in NSQ's words."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.protocol.commands import CommandRefused
from penstock.broker.protocol.negotiation import NegotiatedSettings, NegotiationLimits, negotiate

LIMITS = NegotiationLimits()
UNDECODABLE = "E_BAD_BODY IDENTIFY failed to decode JSON body"
INTEGERS = (
    "heartbeat_interval",
    "output_buffer_size",
    "output_buffer_timeout",
    "deflate_level",
    "sample_rate",
    "msg_timeout",
)
FLAGS = ("feature_negotiation", "tls_v1", "deflate", "snappy", "durable")
TEXTS = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")


def ask(limits: NegotiationLimits = LIMITS, **fields: object) -> NegotiatedSettings:
    return negotiate(json.dumps(fields).encode(), limits)


def answer(limits: NegotiationLimits = LIMITS, **fields: object) -> dict[str, object]:
    negotiated = ask(limits, feature_negotiation=True, **fields)
    assert negotiated.answer is not None
    found = json.loads(negotiated.answer)
    assert isinstance(found, dict)
    return found


def refusal(body: bytes, limits: NegotiationLimits = LIMITS) -> str:
    with pytest.raises(CommandRefused) as caught:
        negotiate(body, limits)
    return f"{caught.value.code} {caught.value.text}"


def test_without_features_the_defaults_hold_and_nothing_is_answered() -> None:
    defaults = NegotiatedSettings(client_id="", hostname="")
    assert ask() == defaults
    assert negotiate(b"null", LIMITS) == defaults
    assert ask(short_id="s", long_id="l", unknown=[{}]) == defaults
    assert ask(snappy=True, deflate=True, tls_v1=True) == defaults


def test_the_answer_has_nsqs_keys_in_nsqs_order() -> None:
    assert list(answer().items()) == [
        ("max_rdy_count", 2500),
        ("version", "1.3.0"),
        ("max_msg_timeout", 900_000),
        ("msg_timeout", 60_000),
        ("tls_v1", False),
        ("deflate", False),
        ("deflate_level", 6),
        ("max_deflate_level", 6),
        ("snappy", False),
        ("sample_rate", 0),
        ("auth_required", False),
        ("output_buffer_size", 16_384),
        ("output_buffer_timeout", 250),
        ("topology_region", ""),
        ("topology_zone", ""),
        ("durable", False),
    ]


def test_what_a_client_says_of_itself_is_kept() -> None:
    negotiated = ask(
        client_id="me",
        hostname="host",
        user_agent="agent/1",
        topology_region="r",
        topology_zone="z",
        durable=True,
    )
    assert negotiated == NegotiatedSettings(
        client_id="me",
        hostname="host",
        user_agent="agent/1",
        topology_region="r",
        topology_zone="z",
        durable=True,
    )
    # The region in the answer is the server's.
    assert answer(topology_region="r")["topology_region"] == ""


def test_a_name_without_end_is_cut() -> None:
    assert ask(client_id="x" * 100_000).client_id == "x" * 1_024


@pytest.mark.parametrize(
    ("field", "asked", "attribute", "kept", "answered"),
    [
        ("heartbeat_interval", -1, "heartbeat_ms", 0, None),
        ("heartbeat_interval", 0, "heartbeat_ms", 30_000, None),
        ("heartbeat_interval", 1_000, "heartbeat_ms", 1_000, None),
        ("heartbeat_interval", 60_000, "heartbeat_ms", 60_000, None),
        ("output_buffer_size", -1, "output_buffer_bytes", 1, "output_buffer_size"),
        ("output_buffer_size", -1, "output_timeout_ms", 0, "output_buffer_timeout"),
        ("output_buffer_size", 0, "output_buffer_bytes", 16_384, "output_buffer_size"),
        ("output_buffer_size", 64, "output_buffer_bytes", 64, "output_buffer_size"),
        ("output_buffer_size", 65_536, "output_buffer_bytes", 65_536, "output_buffer_size"),
        ("output_buffer_timeout", -1, "output_timeout_ms", 0, "output_buffer_timeout"),
        ("output_buffer_timeout", 0, "output_timeout_ms", 250, "output_buffer_timeout"),
        ("output_buffer_timeout", 25, "output_timeout_ms", 25, "output_buffer_timeout"),
        ("output_buffer_timeout", 30_000, "output_timeout_ms", 30_000, "output_buffer_timeout"),
        ("sample_rate", 0, "sample_rate", 0, "sample_rate"),
        ("sample_rate", 99, "sample_rate", 99, "sample_rate"),
        ("msg_timeout", 0, "message_timeout_ms", 60_000, "msg_timeout"),
        ("msg_timeout", 1_000, "message_timeout_ms", 1_000, "msg_timeout"),
        ("msg_timeout", 900_000, "message_timeout_ms", 900_000, "msg_timeout"),
        ("deflate_level", 3, "deflate_level", 6, "deflate_level"),  # without deflate
        ("snappy", True, "snappy", True, "snappy"),
        ("deflate", True, "deflate", True, "deflate"),
        ("tls_v1", True, "tls", False, "tls_v1"),
        ("durable", True, "durable", True, "durable"),
    ],
)
def test_a_value_in_its_range_is_kept_and_answered(
    field: str, asked: int, attribute: str, kept: int, answered: str | None
) -> None:
    fields: dict[str, Any] = {field: asked}
    negotiated = ask(feature_negotiation=True, **fields)
    assert getattr(negotiated, attribute) == kept
    if answered is not None:
        assert answer(**fields)[answered] == kept


@pytest.mark.parametrize(
    ("asked", "most", "kept"),
    [(0, 6, 6), (-3, 6, 6), (1, 6, 1), (6, 6, 6), (9, 6, 6), (9, 9, 9), (0, 4, 4)],
)
def test_the_level_of_deflate_is_bounded(asked: int, most: int, kept: int) -> None:
    limits = dataclasses.replace(LIMITS, max_deflate_level=most)
    found = answer(limits, deflate=True, deflate_level=asked)
    assert (found["deflate_level"], found["max_deflate_level"]) == (kept, most)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("heartbeat_interval", 500, "heartbeat interval (500) is invalid"),
        ("heartbeat_interval", -2, "heartbeat interval (-2) is invalid"),
        ("heartbeat_interval", 999, "heartbeat interval (999) is invalid"),
        ("heartbeat_interval", 60_001, "heartbeat interval (60001) is invalid"),
        ("output_buffer_size", -2, "output buffer size (-2) is invalid"),
        ("output_buffer_size", 63, "output buffer size (63) is invalid"),
        ("output_buffer_size", 65_537, "output buffer size (65537) is invalid"),
        ("output_buffer_timeout", -2, "output buffer timeout (-2) is invalid"),
        ("output_buffer_timeout", 24, "output buffer timeout (24) is invalid"),
        ("output_buffer_timeout", 30_001, "output buffer timeout (30001) is invalid"),
        ("sample_rate", -1, "sample rate (-1) is invalid"),
        ("sample_rate", 100, "sample rate (100) is invalid"),
        ("msg_timeout", -1, "msg timeout (-1) is invalid"),
        ("msg_timeout", 999, "msg timeout (999) is invalid"),
        ("msg_timeout", 900_001, "msg timeout (900001) is invalid"),
    ],
)
@pytest.mark.parametrize("features", [True, False])
def test_a_value_out_of_its_range_is_refused(
    field: str, value: int, text: str, *, features: bool
) -> None:
    body = json.dumps({field: value, "feature_negotiation": features}).encode()
    assert refusal(body) == f"E_BAD_BODY IDENTIFY {text}"


def test_of_many_wrong_values_nsqs_first_is_named() -> None:
    fields = {
        "msg_timeout": 1,
        "sample_rate": 100,
        "output_buffer_size": 1,
        "output_buffer_timeout": 1,
        "heartbeat_interval": 1,
    }
    words = []
    for name in reversed(fields):
        words.append(refusal(json.dumps(fields).encode()).removeprefix("E_BAD_BODY IDENTIFY "))
        fields[name] = 0
    assert [word.split(" (")[0] for word in words] == [
        "heartbeat interval",
        "output buffer timeout",
        "output buffer size",
        "sample rate",
        "msg timeout",
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{} {}",
        b"[]",
        b"1",
        b'"text"',
        b"not json",
        b"\xff\xfe{\0}\0",
        b'{"client_id":"\\ud800"}',
        b'{"sample_rate":NaN}',
        b'{"sample_rate":1.0}',
        b'{"sample_rate":1e1}',
        b'{"heartbeat_interval":%s}' % (b"9" * 5000),
        b"[" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert refusal(body) == UNDECODABLE


def test_what_is_no_utf8_in_a_name_is_replaced() -> None:
    negotiated = negotiate(b'{"client_id":"a\xffb","hostname":"M\xfcnchen"}', LIMITS)
    assert (negotiated.client_id, negotiated.hostname) == ("a\ufffdb", "M\ufffdnchen")


OF_OTHER_TYPES: tuple[tuple[tuple[str, ...], tuple[object, ...]], ...] = (
    (INTEGERS, ("1000", True, 1000.5, [], {})),
    (FLAGS, ("true", 1, 0, [], {})),
    (TEXTS, (1, True, [], {})),
)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [(field, wrong) for fields, values in OF_OTHER_TYPES for field in fields for wrong in values],
)
def test_a_value_of_another_type_is_refused(field: str, wrong: object) -> None:
    assert refusal(json.dumps({field: wrong}).encode()) == UNDECODABLE


@pytest.mark.parametrize("field", [*INTEGERS, *FLAGS, *TEXTS])
def test_null_is_the_default(field: str) -> None:
    nothing: dict[str, Any] = {field: None}
    assert ask(**nothing) == ask()


def test_both_compressions_are_refused_where_both_are_offered() -> None:
    both = {"snappy": True, "deflate": True}
    body = json.dumps({"feature_negotiation": True, **both}).encode()
    expected = "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert refusal(body) == expected
    found = answer(dataclasses.replace(LIMITS, snappy=False), **both)
    assert (found["snappy"], found["deflate"]) == (False, True)


def test_the_server_has_what_it_offers() -> None:
    limits = NegotiationLimits(tls=True, auth_required=True, max_ready_count=7, deflate=False)
    found = answer(limits, tls_v1=True, deflate=True)
    assert found["tls_v1"] is True
    assert found["deflate"] is False
    assert found["auth_required"] is True
    assert found["max_rdy_count"] == 7


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(fields=st.dictionaries(st.sampled_from([*INTEGERS, *FLAGS, *TEXTS, "x"]), JSON))
def test_any_object_is_either_negotiated_within_bounds_or_refused(
    fields: dict[str, object],
) -> None:
    try:
        negotiated = negotiate(json.dumps(fields).encode(), LIMITS)
    except CommandRefused:
        return
    assert negotiated.heartbeat_ms == 0 or 1_000 <= negotiated.heartbeat_ms <= 60_000
    assert 1 <= negotiated.output_buffer_bytes <= 65_536
    assert 0 <= negotiated.output_timeout_ms <= 30_000
    assert 1_000 <= negotiated.message_timeout_ms <= 900_000
    assert 0 <= negotiated.sample_rate <= 99
    assert 1 <= negotiated.deflate_level <= 6
    assert not (negotiated.snappy and negotiated.deflate)
    assert (negotiated.answer is not None) == (fields.get("feature_negotiation") is True)


@given(body=st.binary(max_size=60))
def test_any_body_is_negotiated_or_refused(body: bytes) -> None:
    with contextlib.suppress(CommandRefused):
        negotiate(body, LIMITS)
