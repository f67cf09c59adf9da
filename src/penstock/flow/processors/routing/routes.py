"""Sending FlowFiles along relationships that users name.

Owns how one FlowFile goes to several, and which names will not do. Does not own who decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.flow.processor import FlowFile, Problem, Processor, ProcessSession
from penstock.flow.processor.processor import declared_relationships

BATCH_FLOWFILES: Final = 500
"""So many FlowFiles are taken at once: one commit for all of them."""


def send_to_all(session: ProcessSession, flowfile: FlowFile, names: Sequence[str]) -> None:
    """Send a FlowFile to several relationships, to all but the first as a clone."""
    for name in names[1:]:
        session.transfer(session.clone(flowfile), name)
    session.transfer(flowfile, names[0])


def name_problems(processor: Processor) -> Iterator[Problem]:
    """Yield the dynamic properties whose name is that of a relationship there is anyway."""
    own = declared_relationships(type(processor))
    for name in processor.dynamic_values:
        if name in own:
            yield Problem(
                name, "is the name of a relationship of this processor already: use another"
            )
