"""Hypothesis strategies for flows: any that the model takes, sensible or not."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.flow.graph.flow_model import (
    BackoffMechanism,
    BulletinLevel,
    Connection,
    Flow,
    Funnel,
    Label,
    Parameter,
    ParameterContext,
    Port,
    Position,
    ProcessGroup,
    Processor,
    Retry,
    Schedule,
    Strategy,
)

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["null", "~", "no", "0755", "a: b", "- a", "#{p}", "'", '"', "\n", "\x85", "\u2028", "<<", "="]
)
NAMES = st.sampled_from(
    ["A", "B", "a.b", "a b", "null", "no", "1", "Größe", "#x", "- y", "<<", "🙂"]
) | (
    st.text(
        alphabet=st.characters(categories=["L", "N", "P", "S"], exclude_characters="/"),
        min_size=1,
        max_size=8,
    )
)
PARAMETER_NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,6}", fullmatch=True)
IDS = st.none() | st.uuids().map(str)
COORDINATES = st.integers(-(1 << 63), (1 << 63) - 1)
POSITIONS = st.none() | st.builds(Position, x=COORDINATES, y=COORDINATES)
SCHEDULES = st.builds(
    Schedule,
    strategy=st.sampled_from(Strategy),
    period=st.sampled_from(["", "10 sec", " 1 s ", "0 0 13 * * ?", "#{p}"]) | TEXTS,
    zone=st.sampled_from(["UTC", "Europe/Berlin"]),
    catch_up=st.booleans(),
)
RETRIES = st.builds(
    Retry,
    count=st.integers(0, 1000),
    backoff=st.sampled_from(BackoffMechanism),
    max_backoff=st.sampled_from(["10 mins", "1 s"]),
)
PROCESSORS = st.builds(
    Processor,
    type=NAMES,
    id=IDS,
    comments=TEXTS,
    position=POSITIONS,
    properties=st.dictionaries(NAMES, TEXTS | st.lists(TEXTS, max_size=3).map(tuple), max_size=3),
    schedule=SCHEDULES,
    concurrent_tasks=st.integers(1, 1000),
    bulletin_level=st.sampled_from(BulletinLevel),
    auto_terminated=st.lists(NAMES, max_size=2).map(tuple),
    retry=st.dictionaries(NAMES, RETRIES, max_size=2),
    enabled=st.booleans(),
)
CONNECTIONS = st.builds(
    Connection,
    source=TEXTS,
    destination=TEXTS,
    relationships=st.lists(NAMES, max_size=3).map(tuple),
    name=TEXTS,
    id=IDS,
    prioritizers=st.lists(TEXTS, max_size=2).map(tuple),
    back_pressure_count=st.integers(0, 1 << 40),
    back_pressure_size=TEXTS,
)
SECRETS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
PARAMETERS = st.one_of(
    st.builds(Parameter, value=TEXTS, description=TEXTS),
    st.builds(Parameter, env=TEXTS, sensitive=st.booleans()),
    st.builds(Parameter, secret=SECRETS, sensitive=st.just(value=True), description=TEXTS),
    st.builds(Parameter, file=TEXTS, sensitive=st.booleans(), description=TEXTS),
)
FUNNELS = st.dictionaries(NAMES, st.builds(Funnel, id=IDS, comments=TEXTS), max_size=2)
PORTS = st.dictionaries(NAMES, st.builds(Port, comments=TEXTS), max_size=2)
LABELS = st.lists(st.builds(Label, text=TEXTS, position=POSITIONS), max_size=2).map(tuple)
CONTEXTS = st.dictionaries(
    NAMES,
    st.builds(
        ParameterContext,
        parameters=st.dictionaries(PARAMETER_NAMES, PARAMETERS, max_size=2),
        inherits=st.lists(NAMES, max_size=2).map(tuple),
        description=TEXTS,
    ),
    max_size=2,
)
_IN_GROUP = {
    "id": IDS,
    "comments": TEXTS,
    "parameters": st.dictionaries(PARAMETER_NAMES, PARAMETERS, max_size=2),
    "parameter_context": st.none() | NAMES,
    "max_concurrent_tasks": st.none() | st.integers(1, 1000),
    "input_ports": PORTS,
    "output_ports": PORTS,
    "processors": st.dictionaries(NAMES, PROCESSORS, max_size=2),
    "funnels": FUNNELS,
    "connections": st.lists(CONNECTIONS, max_size=2).map(tuple),
    "labels": LABELS,
}
GROUPS = st.recursive(
    st.builds(ProcessGroup, **_IN_GROUP),
    lambda inner: st.builds(
        ProcessGroup, **_IN_GROUP, groups=st.dictionaries(NAMES, inner, max_size=2)
    ),
    max_leaves=2,
)
FLOWS = st.builds(
    Flow,
    name=NAMES,
    version=TEXTS,
    parameter_contexts=CONTEXTS,
    groups=st.dictionaries(NAMES, GROUPS, max_size=2),
    **_IN_GROUP,
)
