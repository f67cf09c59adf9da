"""What replacing tasks are told of what others append."""

from __future__ import annotations

from penstock.storage.metadata import MetadataStore


def left_for(store: MetadataStore, task_id: str, datasource: str = "d") -> set[str]:
    """Return the used segments that are not in a task's input, as its commit lists them again."""
    read = store.segments.used(datasource, replaced_by=task_id)
    return {row.id for row in store.segments.used(datasource)} - {row.id for row in read}
