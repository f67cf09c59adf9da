"""CRON expressions in Quartz syntax: seconds to years, with L, W and #."""

from penstock.flow.scheduling.cron.expression import CronExpression
from penstock.flow.scheduling.cron.parser import CronError

__all__ = ["CronError", "CronExpression"]
