"""How the log of a flow says which component a message is about.

Owns the name of the field of a log record, which whoever logs gives and bulletins read.
"""

from __future__ import annotations

from typing import Final

COMPONENT: Final = "component"  # its id


def of_component(component_id: str) -> dict[str, object]:
    """Return what a call of a logger is given as `extra`."""
    return {COMPONENT: component_id}
