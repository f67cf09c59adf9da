"""Field of log records that names the component of a message.

Owns the name of the field, which log calls set and bulletins read.
"""

from __future__ import annotations

from typing import Final

COMPONENT: Final = "component"  # its id


def of_component(component_id: str) -> dict[str, object]:
    """Return the argument `extra` for a call of a logger."""
    return {COMPONENT: component_id}
