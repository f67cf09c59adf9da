"""Work in Spark that was ended but does not stop.

Work that makes very many rows from few, such as a join without a condition, checks for cancellation
only after the last row: it keeps a core busy for hours after its query was cancelled. The executors
of a cluster exit in this case; a local Spark only logs it. So a local Spark is configured to log it
to a separate file, and the launcher ends Spark when the file is not empty.

Owns the file, the log configuration that fills it, and the description of the problem.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# Far longer than ended work needs to stop: sorts end within seconds, Python workers within two.
_KILL_TIMEOUT: Final = "60s"

STUCK_CONF: Final = {
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.pollingInterval": "5s",
    "spark.task.reaper.killTimeout": _KILL_TIMEOUT,
}


def stuck_file(run_folder: Path) -> Path:
    """Return the file that is not empty if work does not end."""
    return run_folder / "stuck.log"


def stuck_log_conf(file: str) -> str:
    """Return the part of the logging configuration that fills the file."""
    return f"""appender.stuck.type = File
appender.stuck.name = stuck
appender.stuck.fileName = {file}
appender.stuck.layout.type = PatternLayout
appender.stuck.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSSXX}} %m%n
appender.stuck.filter.words.type = RegexFilter
appender.stuck.filter.words.regex = Killed task .* could not be stopped within .*
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = warn
logger.executor.appenderRef.stuck.ref = stuck
"""


def stuck_reason(run_folder: Path) -> str:
    """Return why a Spark must be ended; "" if it need not be."""
    with contextlib.suppress(OSError):
        if stuck_file(run_folder).stat().st_size:
            return f"still runs cancelled work: it did not stop within {_KILL_TIMEOUT}"
    return ""
