"""The life of a component: stopped, starting, running, stopping, disabled.

Owns which state follows on what, and what must be done then; does none of it. Invariants: what is
wanted is remembered beside the state, so a start that comes while it stops is not lost; a component
is `on_stopped` exactly once for each `on_scheduled` that was called, also for one that failed.
"""

from __future__ import annotations

from enum import Enum


class ComponentState(Enum):
    """Where a component is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    """Is validated and made ready; tried again for as long as that fails."""
    RUNNING = "running"
    RUN_ONCE = "run once"
    """As running, for one run."""
    STOPPING = "stopping"
    """No run begins; those under way end."""
    DISABLED = "disabled"
    """Stopped, and cannot be started."""


class Desired(Enum):
    """Where a component is to go."""

    STOPPED = "stopped"
    RUNNING = "running"
    RUN_ONCE = "run once"
    DISABLED = "disabled"
