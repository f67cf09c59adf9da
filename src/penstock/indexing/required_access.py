"""The rights that the submitter of a task or supervisor needs.

Owns which parts of a spec need which right. Does not own the decision (`core.access`). A kind of
task or input that this module does not know is refused, so that a new one needs a line here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, assert_never

from pydantic import BaseModel

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import names_in
from penstock.indexing.specs.batch.batch_task_specs import KillSpec, NoopSpec
from penstock.indexing.specs.batch.compact import CompactSpec
from penstock.indexing.specs.batch.index_parallel import IndexParallelSpec
from penstock.indexing.specs.batch.spark_write import SparkWriteSpec
from penstock.indexing.specs.batch.sql_ingest import SqlIngestSpec
from penstock.indexing.specs.compaction import CompactionSupervisorSpec
from penstock.indexing.specs.inputs import (
    DruidInput,
    HttpInput,
    InlineInput,
    InputSource,
    LocalInput,
    StoredInput,
    UploadInput,
    input_sources,
    uploads_of,
)
from penstock.indexing.specs.lookup_spec import LookupSpec
from penstock.indexing.specs.sources.databases import DatabaseInput
from penstock.indexing.specs.supervisor_spec import AnySupervisorSpec, SupervisorSpec
from penstock.indexing.task_spec import StreamTaskSpec

RequiredAccess = tuple[Action, Resource]

INPUTS: Final = Resource(ResourceKind.SYSTEM, "inputs")
"""Files, databases, servers and other systems outside Penstock."""


def required_access(spec: object) -> list[RequiredAccess]:
    """Return the actions and resources that a spec needs, each once.

    Args:
        spec: The spec of a batch task or a supervisor. The datasources that the query of a SQL task
            reads are not included: only Spark knows them, see `SqlIngestSpec.reads`.

    Raises:
        InvalidRequest: The kind of the spec, or of an input, is unknown here.
    """
    needed = dict.fromkeys(_required(spec))
    if isinstance(spec, BaseModel):
        needed.update((secret_right(name), None) for name in names_in(spec.model_dump()))
    return list(needed)


def secret_right(name: str) -> RequiredAccess:
    """Return the right that whoever names a secret needs."""
    return Action.READ, Resource(ResourceKind.SECRET, name)


def datasource_of_spec(spec: AnySupervisorSpec) -> str:
    """Return the datasource that a supervisor writes."""
    if isinstance(spec, CompactionSupervisorSpec):
        return spec.spec.datasource
    return spec.data_schema.datasource


def _required(spec: object) -> Iterator[RequiredAccess]:
    match spec:
        case IndexParallelSpec() | SqlIngestSpec():
            yield _on_datasource(Action.WRITE, spec.datasource)
            for source in _inputs(spec):
                yield from _of_input(source)
        case CompactSpec() | NoopSpec() | SparkWriteSpec():
            yield _on_datasource(Action.WRITE, spec.datasource)
        case KillSpec():
            # It deletes what segments marked unused still have, as no other task does.
            yield _on_datasource(Action.MANAGE, spec.datasource)
        case SupervisorSpec():
            yield _on_datasource(Action.WRITE, datasource_of_spec(spec))
            topic = spec.io.stream if spec.io.source == "topic" else None
            yield from _of_stream(topic, spec.io.dead_letters)
        case StreamTaskSpec():
            yield _on_datasource(Action.WRITE, spec.datasource)
            yield from _of_stream(
                spec.topic if spec.place is None else None, spec.dead_letter_topic
            )
        case CompactionSupervisorSpec():
            yield _on_datasource(Action.MANAGE, datasource_of_spec(spec))
        case _:
            raise InvalidRequest(
                f"a spec of the kind {type(spec).__name__} cannot be submitted: its rights are not"
                " known"
            )


def required_by_input(source: InputSource) -> list[RequiredAccess]:
    """Return the actions and resources that reading an input needs, each once."""
    needed = dict.fromkeys(_of_input(source))
    needed.update((secret_right(name), None) for name in names_in(source.model_dump()))
    return list(needed)


def required_by_lookup(spec: LookupSpec) -> list[RequiredAccess]:
    """Return the actions and resources that a lookup needs when it is applied and refreshed."""
    needed: list[RequiredAccess] = [(Action.WRITE, Resource(ResourceKind.LOOKUP, spec.name))]
    if spec.input_source is not None:
        needed += required_by_input(spec.input_source)
    return needed


def uploads_needed(spec: object) -> tuple[str, ...]:
    """Return the ids of the uploads that a task reads, which its submitter must have made."""
    if isinstance(spec, IndexParallelSpec | SqlIngestSpec):
        return uploads_of(_inputs(spec))
    return ()


def _inputs(spec: IndexParallelSpec | SqlIngestSpec) -> list[InputSource]:
    if isinstance(spec, IndexParallelSpec):
        return [spec.spec.io_config.input_source]
    return [table.input_source for table in spec.externs]


def _of_input(source: InputSource) -> Iterator[RequiredAccess]:
    for one in input_sources(source):
        match one:
            case DruidInput():
                yield _on_datasource(Action.READ, one.datasource)
            case InlineInput() | UploadInput():
                pass  # the principal has sent both: `uploads_needed`
            case LocalInput() | HttpInput() | StoredInput() | DatabaseInput():
                yield Action.READ_EXTERNAL, INPUTS
            case _:
                assert_never(one)


def _of_stream(topic: str | None, dead_letters: str) -> Iterator[RequiredAccess]:
    if topic is None:
        yield Action.READ_EXTERNAL, INPUTS
    else:
        yield Action.READ, Resource(ResourceKind.TOPIC, topic)
    yield Action.WRITE, Resource(ResourceKind.TOPIC, dead_letters)


def _on_datasource(action: Action, name: str) -> RequiredAccess:
    return action, Resource(ResourceKind.DATASOURCE, name)
