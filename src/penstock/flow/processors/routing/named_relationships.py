"""Transfer of FlowFiles to relationships that users name.

Owns the transfer of one FlowFile to several relationships, and the check of names. Does not own the
choice of relationships.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.flow.processor import FlowFile, Problem, Processor, ProcessSession
from penstock.flow.processor.processor import declared_relationships

BATCH_FLOWFILES: Final = 500
"""Maximum number of FlowFiles taken at once, with one commit for all."""


def send_to_all(session: ProcessSession, flowfile: FlowFile, names: Sequence[str]) -> None:
    """Transfer a FlowFile to several relationships; all but the first get a clone."""
    for name in names[1:]:
        session.transfer(session.clone(flowfile), name)
    session.transfer(flowfile, names[0])


def name_problems(processor: Processor) -> Iterator[Problem]:
    """Yield dynamic properties with the name of a static relationship."""
    own = declared_relationships(type(processor))
    for name in processor.dynamic_values:
        if name in own:
            yield Problem(
                name, "is already the name of a relationship of this processor: use another"
            )
