"""Explain why the demo's counts do not change, from the answers of the API. Pure.

On a busy machine, the first job of Spark takes half a minute: the demo reports what it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.services.answers import objects, part

_MS_PER_S: Final = 1_000
_PHASES: Final = {
    "PENDING": "a task that has no slot yet",
    "STARTING": "a task that starts",
    "READING": "a task that indexes on Spark",
    "PAUSED": "a task that waits for its checkpoint",
    "PUBLISHING": "a task that publishes segments",
}


def flow_at_work(status: Mapping[str, object]) -> list[str]:
    """Return the running components of a flow and their run times, from its status."""
    return [
        f"{one.get('name')} of the flow, at work for {took_ms // _MS_PER_S} s"
        for one in objects(status, "components")
        if one.get("activeTasks") and isinstance(took_ms := one.get("longestActiveMs"), int)
    ]


def tasks_at_work(status: Mapping[str, object]) -> list[str]:
    """Return what the tasks of a supervisor do, from its status."""
    payload = part(status, "payload")
    tasks = [*objects(payload, "publishingTasks"), *objects(payload, "activeTasks")]
    if not tasks:
        return ["a task of the supervisor"]
    found = [_PHASES.get(str(one.get("phase"))) for one in tasks]
    return list(dict.fromkeys(text for text in found if text is not None))
