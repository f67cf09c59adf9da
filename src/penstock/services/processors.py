"""The processors that flows may name: those that come with Penstock, and those that are listed.

Owns the table of those that come with Penstock, the registry of all for the flow service and the
commands, and the table of places where code of users runs, for which the right `run-code` is
required (`code_uses`). Nothing is imported before it is used.

Places of code are classified by names in the flow, and its modules are not imported: a name that is
not in the table of Penstock's own processors is code. SQL and expressions are not code: they have
only functions that Penstock lists (`spark.sql_guard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.flow.graph.flow_index import FlowIndex, PlacedConnection
from penstock.flow.graph.flow_model import Flow, Processor
from penstock.flow.prioritizers import STANDARD
from penstock.flow.processor.processor_registry import ProcessorRegistry, installed_paths
from penstock.flow.processors.builtin import BUILTIN
from penstock.flow.user_modules import SERVICE_MODULES, FlowModules
from penstock.spark.flow.builtin import SPARK_PROCESSORS

PROCESSORS: Final[Mapping[str, str]] = {**BUILTIN, **SPARK_PROCESSORS}


_NAMES: Final = {path: name for name, path in PROCESSORS.items()}


def own_processor(kind: str) -> str | None:
    """Return the name of a processor that comes with Penstock; None: it is code of users.

    Args:
        kind: The type of a processor in a flow: a name, or the path of a class.
    """
    return kind if kind in PROCESSORS else _NAMES.get(kind)


def registry_for(flow_modules: Iterable[str]) -> ProcessorRegistry:
    """Return the registry of this process, and let its processors use the same list.

    Args:
        flow_modules: What `--flow-modules` lists.

    Raises:
        InvalidRequest: A folder or package of the list does not exist.
    """
    modules = FlowModules(flow_modules)
    SERVICE_MODULES.set(modules)
    return ProcessorRegistry(PROCESSORS, installed_paths(), modules)


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A place of a flow where code of users runs, or where it is named.

    Attributes:
        processor: Name of the processor that comes with Penstock; empty: any.
        field: Its property, or the field of the flow.
        about: Which code runs, and in which process.
    """

    processor: str
    field: str
    about: str


@dataclass(frozen=True, slots=True)
class CodeUse:
    """A component of a flow that runs code of users.

    Attributes:
        component: The component, as messages name it.
        place: The place in the table.
        code: The code that is named there.
    """

    component: str
    place: CodePlace
    code: str


_TYPE: Final = CodePlace(
    "",
    "type",
    "the class of a processor that does not come with Penstock, in the process of the flow",
)
_PRIORITIZER: Final = CodePlace(
    "",
    "prioritizers",
    "the class of a prioritizer that does not come with Penstock, in the process of the flow",
)
_IN_PROCESSORS: Final = (
    CodePlace(
        "SparkScript",
        "function",
        "a Python function, in the process of the flow, whose DataFrames may bring more to Spark",
    ),
)


def code_places() -> tuple[CodePlace, ...]:
    """Return all places where code of users runs: the right `run-code` is required for them."""
    return (_TYPE, _PRIORITIZER, *_IN_PROCESSORS)


def code_uses(flow: Flow) -> Iterator[CodeUse]:
    """Yield the components of a flow that run code of users; none if it needs no `run-code`."""
    index = FlowIndex.of(flow)
    for placed, processor in index.processors:
        for place, code in _code_in(processor):
            yield CodeUse(str(placed), place, code)
    for connected in index.connections:
        for prioritizer in _code_prioritizers(connected):
            yield CodeUse(str(connected), _PRIORITIZER, prioritizer)


def components_with_code(index: FlowIndex) -> frozenset[str]:
    """Return the ids of the components that run code of users.

    A prioritizer runs when a component adds FlowFiles to its queue or takes them.
    """
    found = {placed.id for placed, processor in index.processors if any(_code_in(processor))}
    for connected in index.connections:
        if any(_code_prioritizers(connected)):
            ends = (connected.source, connected.destination)
            found |= {end.id for end in ends if end is not None}
    return frozenset(found)


def _code_in(processor: Processor) -> Iterator[tuple[CodePlace, str]]:
    name = own_processor(processor.type)
    if name is None:
        yield _TYPE, processor.type
    for place in _IN_PROCESSORS:
        if place.processor == name:
            yield place, str(processor.properties.get(place.field, ""))


def _code_prioritizers(connected: PlacedConnection) -> Iterator[str]:
    for prioritizer in connected.connection.prioritizers:
        if prioritizer.rpartition(".")[2] not in STANDARD:
            yield prioritizer
