"""Supervisors: each keeps the right streaming tasks running for one datasource."""

from penstock.indexing.supervisor.spec_updates import (
    UpdateAction,
    check_stream,
    succeed,
    update_action,
)
from penstock.indexing.supervisor.stream_watch import cursor_name
from penstock.indexing.supervisor.supervisor import Supervisor
from penstock.indexing.supervisor.supervisor_ports import (
    ActiveStream,
    SupervisorOptions,
    SupervisorPorts,
)
from penstock.indexing.supervisor.supervisor_status import (
    rows_per_second,
    supervisor_parse_errors,
    supervisor_stats,
    supervisor_status,
    supervisor_summary,
)

__all__ = [
    "ActiveStream",
    "Supervisor",
    "SupervisorOptions",
    "SupervisorPorts",
    "UpdateAction",
    "check_stream",
    "cursor_name",
    "rows_per_second",
    "succeed",
    "supervisor_parse_errors",
    "supervisor_stats",
    "supervisor_status",
    "supervisor_summary",
    "update_action",
]
