"""All state machines of the product, and the page of the docs that shows their tables.

    python tests/machines.py

writes `docs/contributing/transitions.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

from penstock.broker.channel.message_states import MESSAGE_MACHINE
from penstock.broker.protocol.connection_state import CLIENT_MACHINE
from penstock.core.state_machine import IGNORED, IMPOSSIBLE, Refusal, StateMachine, Transition
from penstock.flow.scheduling.component_lifecycle import LIFECYCLE
from penstock.indexing import sequences
from penstock.indexing.overlord.task_state import TASK_MACHINE
from penstock.indexing.supervisor import task_groups

PAGE: Final = Path(__file__).parents[1] / "docs" / "contributing" / "transitions.md"
# Titles and modules of the machines.
MACHINES: Final[Mapping[str, tuple[str, StateMachine[Any, Any, Any]]]] = {
    "Component of a flow": ("flow.scheduling.component_lifecycle", LIFECYCLE),
    "Task group of a supervisor": ("indexing.supervisor.task_groups", task_groups.MACHINE),
    "Sequence of a streaming task": ("indexing.sequences", sequences.MACHINE),
    "Task in the overlord": ("indexing.overlord.task_state", TASK_MACHINE),
    "Connection of an NSQ client": ("broker.protocol.connection_state", CLIENT_MACHINE),
    "Message of a channel": ("broker.channel.message_states", MESSAGE_MACHINE),
}
_HEAD: Final = """\
# State machines

This page is generated from the tables in the code (`python tests/machines.py`); a test checks
that it is up to date. A cell has the next state and the effects that follow, in order. `-`: the
event is ignored. *refused*: a request that is not allowed in this state. An empty cell: the event
cannot happen in this state. The effects are explained below each table.
"""


def page() -> str:
    """Return the text of the page."""
    return _HEAD + "".join(
        _section(title, module, machine) for title, (module, machine) in MACHINES.items()
    )


def _section(title: str, module: str, machine: StateMachine[Enum, Enum, Enum]) -> str:
    states = machine.states
    lines = [
        f"\n## {title}: `{module}`\n",
        f"Begins in {_names(machine.initial)}."
        + (f" Final: {_names(machine.final)}." if machine.final else ""),
        "",
        f"| event | {' | '.join(state.name for state in states)} |",
        f"|---|{'---|' * len(states)}",
    ]
    for event in machine.table:
        cells = (_cell(machine.outcome(state, event), state) for state in states)
        lines.append(f"| {event.value} | {' | '.join(cells)} |")
    outcomes = (machine.outcome(state, event) for event in machine.table for state in states)
    found = (one.effects for one in outcomes if isinstance(one, Transition))
    effects = dict.fromkeys(effect for some in found for effect in some)
    lines += ["", *(f"- `{effect.name}`: {effect.value}" for effect in effects)]
    return "\n".join(lines) + "\n"


def _names(states: frozenset[Enum]) -> str:
    return ", ".join(sorted(state.name for state in states))


def _cell(outcome: object, state: Enum) -> str:
    if isinstance(outcome, Transition):
        effects = ", ".join(effect.name for effect in outcome.effects)
        place = "same" if outcome.state is state else outcome.state.name
        return f"{place}: {effects}" if effects else place
    if isinstance(outcome, Refusal):
        return "*refused*"
    return {IGNORED: "-", IMPOSSIBLE: ""}[outcome]  # type: ignore[index]


if __name__ == "__main__":
    PAGE.write_text(page())
