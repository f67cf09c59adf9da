"""All state machines of the product, and the page that shows their tables."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from penstock.broker.channel.message_states import MESSAGE_MACHINE
from penstock.broker.protocol.connection_state import CONNECTION_MACHINE
from penstock.core.state_machine import IGNORED, IMPOSSIBLE, Refusal, StateMachine, Transition
from penstock.flow.scheduling.component_lifecycle import COMPONENT_MACHINE
from penstock.indexing.overlord.task_state import TASK_MACHINE
from penstock.indexing.sequences import SEQUENCE_MACHINE
from penstock.indexing.supervisor.task_groups import TASK_GROUP_MACHINE
from reference.markdown import head

MANY_EFFECTS: Final = 3


@dataclass(frozen=True)
class Machine:
    """A state machine and what a reader of its table needs to know.

    Attributes:
        module: The module of the table.
        owner: The module that reports the events and carries out the effects.
        about: What has these states, with links to the glossary, and what the table leaves out.
        table: The machine.
    """

    module: str
    owner: str
    about: str
    table: StateMachine[Any, Any, Any]


MACHINES: Final[Mapping[str, Machine]] = {
    "Component of a flow": Machine(
        "flow.scheduling.component_lifecycle",
        "flow.scheduling.lifecycle_driver",
        "Each [component](glossary.md), that is a processor, funnel or port, has one of these "
        "states. Requests come from users; the driver runs the component's methods on threads "
        "and reports how they ended. Runs of a component ([triggers](glossary.md)) are not "
        "states: they begin and end between the effect `SCHEDULE` and the event `DRAINED`.",
        COMPONENT_MACHINE,
    ),
    "Task group of a supervisor": Machine(
        "indexing.supervisor.task_groups",
        "indexing.supervisor.task_protocol",
        "A [task group](glossary.md) has one or more tasks ([replicas](glossary.md)) that "
        "read the same [stream partitions](glossary.md). `task_protocol` asks the tasks over "
        "HTTP and reports their answers; the reconciler reports when a group has read long "
        "enough. In ENDED the group has no tasks and is removed from the supervisor; answers "
        "that arrive later have the effects shown.",
        TASK_GROUP_MACHINE,
    ),
    "Sequence of a streaming task": Machine(
        "indexing.sequences",
        "indexing.task.streaming_state",
        "A [sequence](glossary.md) is a range of offsets that is published in one "
        "transaction. `streaming_state` saves the result of an event before it counts, and "
        "`indexing.task.streaming_task` carries out the effects that are not writes of the "
        "task's own files.",
        SEQUENCE_MACHINE,
    ),
    "Task in the overlord": Machine(
        "indexing.overlord.task_state",
        "indexing.overlord.task_effects",
        "A [task](glossary.md) from its submission to its end, in one term of leadership. "
        "Users see Druid's coarser states: WAITING for locks, PENDING for a worker or on the "
        "way to one, RUNNING at a worker. An end is stored before the task counts as ended.",
        TASK_MACHINE,
    ),
    "Connection of an NSQ client": Machine(
        "broker.protocol.connection_state",
        "broker.tcp.command_handler",
        "One TCP connection of a client that speaks NSQ's protocol V2. The handler carries "
        "out the effects of commands, `broker.tcp.output_buffer` those of the events that end the "
        "connection, and `broker.tcp.tcp_connection` those of all other events. Two "
        "conditions are not states: before the client has sent `  V2`, no command is read and "
        "no heartbeat is sent; and while a command takes time (AUTH, SUB and publishes may), "
        "the next command is not read.",
        CONNECTION_MACHINE,
    ),
    "Message of a channel": Machine(
        "broker.channel.message_states",
        "broker.channel.channel_state",
        "Each [channel](glossary.md) has a state for each message of its topic. There are "
        "millions of them, so `channel_state` works on ranges of offsets with NumPy, and does not "
        "read this table: it is the specification that tests compare the code with.",
        MESSAGE_MACHINE,
    ),
}
_ABOUT: Final = """\
Six things in Penstock have states, and each has a table of transitions, as in h11: a pure
function takes the state and an event, and returns the next state and the effects. The *module of
the effects* stores the state, reports events and carries out the effects, in the order of the
table. The code is in `core.state_machine`.

How to read a table: one row for each event, one column for each state. A cell has the next state
(`same`: it does not change) and, after a colon, the effects. `-`: the event is ignored.
*refused*: the event is a request that is not allowed in this state; its sender gets an error. An
empty cell: the event is never reported in this state, and an assertion fails if it is. *All
effects of the row*: the list in the row's first column. States are explained above each table,
effects and the reasons of refusals below it.
"""


def page() -> str:
    """Return docs/contributing/transitions.md."""
    text = head("State machines", "the tables of transitions", _ABOUT) + "\n"
    return text + "".join(_section(title, one, one.table) for title, one in MACHINES.items())


def _section(title: str, one: Machine, machine: StateMachine[Any, Any, Any]) -> str:
    states = machine.states
    lines = [
        f"\n## {title}\n",
        f"Table: `{one.module}`. Module of the effects: `{one.owner}`.\n",
        f"{textwrap.fill(one.about, 98, break_on_hyphens=False)}\n",
        f"Begins in {_names(machine.initial)}."
        + (f" Final: {_names(machine.final)}." if machine.final else ""),
        "",
        *(f"- {state.name}: {text}" for state, text in _meanings(states).items()),
        "",
        f"| event | {' | '.join(state.name for state in states)} |",
        f"|---|{'---|' * len(states)}",
    ]
    outcomes = {
        event: {state: machine.outcome(state, event) for state in states} for event in machine.table
    }
    for event, row in outcomes.items():
        shared = _shared_effects(row.values())
        text = f"`{event.name}`: {event.value}"
        if shared:
            text += f"; effects of the row: {shared}"
        cells = (_cell(outcome, state, shared) for state, outcome in row.items())
        lines.append(f"| {text} | {' | '.join(cells)} |")
    found = [one for row in outcomes.values() for one in row.values()]
    transitions = (one for one in found if isinstance(one, Transition))
    effects = dict.fromkeys(effect for one in transitions for effect in one.effects)
    lines += ["", *(f"- `{effect.name}`: {effect.value}" for effect in effects)]
    reasons: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for event, row in outcomes.items():
        for outcome in row.values():
            if isinstance(outcome, Refusal):
                reason = outcome.reason.replace(event.name, "…")
                reasons[reason][f"`{event.name}`"] = None
    if reasons:
        shown = (f'{", ".join(events)}: "{reason}"' for reason, events in reasons.items())
        lines += ["", "Reasons of refusals:", "", *(f"- {one}" for one in shown)]
    return "\n".join(lines) + "\n"


def _meanings(states: tuple[Enum, ...]) -> dict[Enum, str]:
    """Return what each state means: the text below its name in the source, else its value."""
    kind = type(states[0])
    found = {state: state.value for state in states}
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(kind)).body
        if isinstance(node, ast.ClassDef)
    )
    for node, behind in itertools.pairwise(body):
        match node, behind:
            case ast.Assign(targets=[ast.Name(name)]), ast.Expr(ast.Constant(str(text))):
                found[kind[name]] = " ".join(text.split()).rstrip(".")
    return {
        state: value if isinstance(value, str) else str(value[0]) for state, value in found.items()
    }


def _shared_effects(outcomes: Iterable[object]) -> str:
    """Return the effects of a row, if they are many and the same in all of its transitions."""
    lists = {one.effects for one in outcomes if isinstance(one, Transition)}
    if len(lists) == 1 and len(effects := lists.pop()) > MANY_EFFECTS:
        return ", ".join(effect.name for effect in effects)
    return ""


def _names(states: frozenset[Enum]) -> str:
    return ", ".join(sorted(state.name for state in states))


def _cell(outcome: object, state: Enum, shared: str) -> str:
    if isinstance(outcome, Transition):
        effects = ", ".join(effect.name for effect in outcome.effects)
        if shared and effects == shared:
            effects = "*all effects of the row*"
        place = "same" if outcome.state is state else outcome.state.name
        return f"{place}: {effects}" if effects else place
    if isinstance(outcome, Refusal):
        return "*refused*"
    return {IGNORED: "-", IMPOSSIBLE: ""}[outcome]  # type: ignore[index]
