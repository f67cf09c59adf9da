"""Mailboxes: one thread owns some state; all other threads send it mail.

The one concurrency rule of Penstock. Most code uses `MailboxThread`; `MailboxProcessor` runs on an
existing thread, or step by step in a simulation.
"""

from penstock.mailbox.control import DefaultActionController, Suspension
from penstock.mailbox.event_mail import EventMail, EventReceiver, IgnoredEvents
from penstock.mailbox.executor import MailboxExecutor
from penstock.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from penstock.mailbox.mailbox_metrics import MailboxMetrics, MailboxStatistics, PeriodTimer
from penstock.mailbox.mailbox_processor import MailboxProcessor
from penstock.mailbox.task_mailbox import MailboxState, TaskMailbox, WrongThread
from penstock.mailbox.thread import MailboxThread
from penstock.mailbox.timers import MailboxTimers, Timer

__all__ = [
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "DefaultActionController",
    "EventMail",
    "EventReceiver",
    "IgnoredEvents",
    "Mail",
    "MailOptions",
    "MailboxExecutor",
    "MailboxMetrics",
    "MailboxProcessor",
    "MailboxState",
    "MailboxStatistics",
    "MailboxThread",
    "MailboxTimers",
    "PeriodTimer",
    "Suspension",
    "TaskMailbox",
    "Timer",
    "WrongThread",
]
