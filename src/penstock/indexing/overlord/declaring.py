"""Registry of the projections that batch tasks declare, for the jobs that build and use them.

A task registers its projections after its publish. A crash between the two only makes queries
slower, and the next task with the same spec registers them again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.indexing.specs.batch import CompactSpec, IndexParallelSpec
from penstock.indexing.specs.rows.declared_projections import (
    config_name,
    dump,
    load,
    merged,
    of_schema,
)

if TYPE_CHECKING:
    from penstock.indexing.specs.rows.declared_projections import Declared
    from penstock.indexing.task_spec import TaskSpec
    from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)

_TRIES: Final = 10


def declare(metadata: MetadataStore, task: TaskSpec) -> None:
    """Register the projections of a task that has published; the newest wins for each name.

    Never raises a `PenstockError`, because the publish is done.
    """
    declared = _declared(task)
    if not declared:
        return
    name = config_name(task.datasource)
    try:
        for _ in range(_TRIES):
            old = metadata.config.get(name)
            known = load(old)
            if set_again := [one for one in declared if one not in known]:
                new = dump(merged(known, set_again))
                if not metadata.config.compare_and_set(name, old, new):
                    continue
            return
        _log.warning("task %s: projections are not registered: others change them at once", task.id)
    except PenstockError as error:
        _log.warning(
            "task %s: projections are not registered, queries read the rows (%s)", task.id, error
        )


def _declared(task: TaskSpec) -> tuple[Declared, ...]:
    match task:
        case IndexParallelSpec():
            if task.data_schema.projections:
                return of_schema(task.data_schema.model_dump(mode="json", by_alias=True))
        case CompactSpec():
            if task.projections:
                return of_schema(task.model_dump(mode="json", by_alias=True))
        case _:
            pass
    return ()
