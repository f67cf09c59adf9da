"""Work that Spark has ended and that does not end.

A piece of work that makes very many rows of a few, such as a join without a condition, is not asked
to stop before it is through: it keeps its core for hours after its query was cancelled. The
executors of a cluster end themselves over it; a local Spark only writes that down. So it has that
written into a file of its own, and whoever keeps Spark running ends it when there is something.

Owns the file, what makes Spark write it, and what is said of it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# Far beyond what ended work takes to stop: sorts end within seconds, Python workers within two.
_GIVEN_UP_AFTER: Final = "60s"

STUCK_CONF: Final = {
    "spark.task.reaper.enabled": "true",
    "spark.task.reaper.pollingInterval": "5s",
    "spark.task.reaper.killTimeout": _GIVEN_UP_AFTER,
}


def stuck_file(run_folder: Path) -> Path:
    """Return the file that has something in it when work does not end."""
    return run_folder / "stuck.log"


def stuck_log_conf(file: str) -> str:
    """Return the part of the logging configuration that fills the file, given as its value."""
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


def told_stuck(run_folder: Path) -> str:
    """Return why a Spark has to be ended, "" if it need not."""
    with contextlib.suppress(OSError):
        if stuck_file(run_folder).stat().st_size:
            return f"works on for what was cancelled: it did not stop within {_GIVEN_UP_AFTER}"
    return ""
