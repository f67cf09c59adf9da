"""HTTP API of one component of a flow: its definition, its schedule, and its state.

Owns paths, parameters and the JSON of a definition, in which secrets are masked.
`penstock.flow.controller` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from penstock.core.access.rules import Action
from penstock.core.instants import format_time
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.export import is_reference
from penstock.flow.graph.flow_model import Processor
from penstock.flow.processor.properties import PropertyFacts
from penstock.services.api.endpoints import Endpoint, EndpointCall, EndpointParameter
from penstock.services.api.flow.flow_access import permitted_flow
from penstock.services.api.flow.flow_json import Json, component_json, connection_json

MASK: Final = "********"
"""Shown in place of a value that must not be shown."""

_TARGET: Final = EndpointParameter("target", "which component, by its id or name", required=True)
_ANSWERS: Final = {404: "The flow does not have this component."}


class ComponentEndpoints:
    """The endpoints of one component.

    Args:
        controller: Returns the flow; raises `Unavailable` while it is not open.
    """

    def __init__(self, controller: Callable[[], FlowController]) -> None:
        self._controller = controller

    def all(self) -> list[Endpoint]:
        """Return the endpoints."""
        table: list[tuple[str, str, str, Callable[[EndpointCall], object]]] = [
            ("GET", "/flow/component", "Show a component with its definition.", self._show),
            ("GET", "/flow/state", "Show the persistent state of a component.", self._state),
            ("DELETE", "/flow/state", "Clear the state of a stopped component.", self._clear),
        ]
        return [Endpoint(*row, [_TARGET], errors=_ANSWERS) for row in table]

    def _show(self, call: EndpointCall) -> object:
        flow = permitted_flow(self._controller, call, Action.READ)
        found = flow.inspection.detail(call.text("target"))
        processor = found.placed.processor
        return {
            **component_json(found.status),
            "stateEntries": found.state_entries,
            "nextFirings": [format_time(one) for one in found.next_firings_ms],
            "inputs": [connection_json(one) for one in found.inputs],
            "outputs": [connection_json(one) for one in found.outputs],
            "definition": None if processor is None else _definition(flow, processor),
        }

    def _state(self, call: EndpointCall) -> object:
        flow = permitted_flow(self._controller, call, Action.READ)
        return {"entries": dict(flow.inspection.state_of(call.text("target")))}

    def _clear(self, call: EndpointCall) -> object:
        flow = permitted_flow(self._controller, call, Action.WRITE)
        return {"cleared": flow.clear_state(call.text("target"))}


def _definition(flow: FlowController, processor: Processor) -> Json:
    schedule = processor.schedule
    return {
        "comments": processor.comments,
        "enabled": processor.enabled,
        "schedule": schedule.short() or f"{schedule.strategy} {schedule.period}".strip(),
        "zone": schedule.zone,
        "catchUp": schedule.catch_up,
        "concurrentTasks": processor.concurrent_tasks,
        "runDuration": processor.run_duration,
        "penaltyDuration": processor.penalty_duration,
        "yieldDuration": processor.yield_duration,
        "bulletinLevel": str(processor.bulletin_level),
        "autoTerminated": list(processor.auto_terminated),
        "retry": {name: retry.count for name, retry in processor.retry.items()},
        "properties": _properties(flow.types.facts(processor.type), processor),
    }


def _properties(facts: Mapping[str, PropertyFacts] | None, processor: Processor) -> list[Json]:
    """Return the properties that are set, and the declared ones with their defaults.

    Args:
        facts: The declared properties by name; None: the type is unknown, so that any property may
            be a secret.
        processor: The processor.
    """
    found: list[Json] = []
    declared = facts or {}
    for name in dict.fromkeys((*declared, *processor.properties)):
        one, value = declared.get(name), processor.properties.get(name)
        is_sensitive = facts is None or (one is not None and one.sensitive)
        shown: object = None if value is None else value
        if is_sensitive and value is not None and not is_reference(value):
            shown = MASK
        found.append(
            {
                "name": name,
                "value": list(shown) if isinstance(shown, tuple) else shown,
                "default": None if one is None or is_sensitive else one.default,
                "isSensitive": is_sensitive,
                "isRequired": one is not None and one.required,
                "about": "" if one is None else one.about,
            }
        )
    return found
