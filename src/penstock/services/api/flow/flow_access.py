"""Access to the flow: the rights to see it, to operate it, and to apply another one.

Owns which right each processor of a flow needs, and who owns a flow that a principal applies. This
principal must have all these rights, and the flow acts for it from then on: while it runs,
`flow.controller.flow_owner` asks for them again. Does not own the decision (`core.access`).

A processor that comes with Penstock needs the rights for its sources and targets. All others,
scripts and prioritizers of users are code (`services.processors.code_uses`). So is a name that is
only known when the flow runs, because it cannot be checked when the flow is applied. Parameters
whose values are in files or environment variables are inputs, as what processors read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.core.access.rules import Action, Resource, ResourceKind, channel_resource
from penstock.core.secret_names import names_in
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.parameters import (
    Scopes,
    named_secrets,
    reads_outside,
    references,
    used_texts,
)
from penstock.indexing.required_access import INPUTS, secret_right
from penstock.services.processors import code_uses, components_with_code, own_processor

if TYPE_CHECKING:
    from penstock.flow.controller.controller import FlowController
    from penstock.flow.graph.flow_model import Flow, Parameter, Processor
    from penstock.indexing.required_access import RequiredAccess
    from penstock.services.api.endpoints import EndpointCall
    from penstock.services.api.request_access import RequestAccess

CODE: Final = Resource(ResourceKind.SYSTEM, "code")
"""Code of users."""

_EXTERNAL: Final = frozenset(
    {"FetchFile", "GetFile", "InvokeHTTP", "ListFiles", "ListenHTTP", "PutFile", "TailFile"}
    | {"SparkSQL"}
)
# The properties by which a processor names what it reads or writes.
_NAMED: Final[Mapping[str, tuple[str, ...]]] = {
    "ConsumeTopic": ("topic", "channel"),
    "PublishTopic": ("topic",),
    "PutDatasource": ("datasource",),
    "LookupAttribute": ("lookup_name",),
    "LookupRecord": ("lookup_name",),
}
_READS: Final = frozenset({"LookupAttribute", "LookupRecord"})
# The properties that name another server than that of this service.
_OTHER_SERVERS: Final = ("addresses", "broker_url", "lookup", "overlord_url")


def permitted_flow(
    controller: Callable[[], FlowController], call: EndpointCall, action: Action
) -> FlowController:
    """Return the flow if the principal may carry out an action on it.

    Raises:
        Forbidden: The principal may not.
        Unavailable: The flow is not open.
    """
    flow = controller()
    call.access.require(action, flow_resource(flow.applied.flow.name))
    return flow


def flow_resource(name: str) -> Resource:
    """Return the resource of a flow."""
    return Resource(ResourceKind.FLOW, name)


def required_by_flow(flow: Flow) -> list[RequiredAccess]:
    """Return the rights that a flow needs, each once: those of whoever applies it."""
    needed: list[RequiredAccess] = [(Action.MANAGE, flow_resource(flow.name))]
    index = FlowIndex.of(flow)
    if any(code_uses(flow)):
        needed.append((Action.RUN_CODE, CODE))
    if reads_outside(index):
        needed.append((Action.READ_EXTERNAL, INPUTS))
    for _, processor in index.processors:
        needed += _of_processor(processor)
    needed += map(secret_right, sorted(named_secrets(index)))
    return list(dict.fromkeys(needed))


def rights_of_processors(index: FlowIndex) -> Mapping[str, Sequence[RequiredAccess]]:
    """Return the rights that each processor of a flow needs while it runs, by its id."""
    needed: dict[str, list[RequiredAccess]] = {}
    scopes = Scopes(index)
    for placed, processor in index.processors:
        rights = needed[placed.id] = list(_of_processor(processor))
        rights += map(secret_right, names_in(processor.properties))
        for _, text in used_texts(processor):
            for name in references(text):
                found = scopes.of(placed.group).find(name)
                if found is not None:
                    rights += _of_parameter(found.parameter)
    for component_id in components_with_code(index):
        if component_id in needed:
            needed[component_id].append((Action.RUN_CODE, CODE))
    return {one: tuple(dict.fromkeys(rights)) for one, rights in needed.items()}


def owner_of_flow(access: RequestAccess, flow: Flow) -> str:
    """Return the owner of a flow that a principal applies; empty: the installation.

    Raises:
        Forbidden: The principal has rights that end with its credential, and without them, its
            rights are not enough for the flow.
    """
    return access.owner_after(required_by_flow(flow), "the flow would act")


def _of_parameter(parameter: Parameter) -> Iterator[RequiredAccess]:
    if parameter.secret is not None:
        yield secret_right(parameter.secret)
    if parameter.file is not None or parameter.env is not None:
        yield Action.READ_EXTERNAL, INPUTS


def _of_processor(processor: Processor) -> Iterator[RequiredAccess]:
    name = own_processor(processor.type)
    if name in _EXTERNAL or any(processor.properties.get(n) for n in _OTHER_SERVERS):
        yield Action.READ_EXTERNAL, INPUTS
    if name is not None and name in _NAMED:
        yield _named_right(name, processor)


def _named_right(kind: str, processor: Processor) -> RequiredAccess:
    """Return the right for the topic, channel, datasource or lookup that a processor names."""
    names = [_fixed(processor.properties, name) for name in _NAMED[kind]]
    topic, channel = (*names, None)[:2]
    if topic is None or (len(names) == 2 and channel is None):
        return Action.RUN_CODE, CODE
    if kind in _READS:
        return Action.READ, Resource(ResourceKind.LOOKUP, topic)
    if channel is not None:
        return Action.READ, channel_resource(topic, channel)
    target = ResourceKind.DATASOURCE if kind == "PutDatasource" else ResourceKind.TOPIC
    return Action.WRITE, Resource(target, topic)


def _fixed(properties: Mapping[str, object], name: str) -> str | None:
    """Return the value of a property; None if it is missing or depends on something else."""
    value = properties.get(name)
    if not isinstance(value, str) or not value or any(sign in value for sign in ("${", "#{")):
        return None
    return value
