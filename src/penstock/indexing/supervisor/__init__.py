"""Supervisors: each keeps the right streaming tasks running for one datasource."""

from penstock.indexing.supervisor.ports import ActiveStream, SupervisorOptions, SupervisorPorts
from penstock.indexing.supervisor.status import (
    supervisor_stats,
    supervisor_status,
    supervisor_summary,
)
from penstock.indexing.supervisor.streamwatch import cursor_name
from penstock.indexing.supervisor.supervisor import Supervisor, check_topic

__all__ = [
    "ActiveStream",
    "Supervisor",
    "SupervisorOptions",
    "SupervisorPorts",
    "check_topic",
    "cursor_name",
    "supervisor_stats",
    "supervisor_status",
    "supervisor_summary",
]
