"""CRON expressions in Quartz syntax: seconds to years, with L, W and #."""

from penstock.flow.scheduling.cron.errors import CronError
from penstock.flow.scheduling.cron.expression import CronExpression

__all__ = ["CronError", "CronExpression"]
