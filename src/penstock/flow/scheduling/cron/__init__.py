"""CRON expressions in Quartz syntax: seconds to years, with L, W and #."""

from penstock.flow.scheduling.cron.cron_parser import CronError
from penstock.flow.scheduling.cron.expression import CronExpression

__all__ = ["CronError", "CronExpression"]
