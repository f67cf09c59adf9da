"""Reads the data folder of an nsqd without changing it: what is whole, and what is damaged."""

from penstock.broker.nsqimport.folder import NsqdFolder
from penstock.broker.nsqimport.metadata import NsqdChannel, NsqdTopic, QueueName
from penstock.broker.nsqimport.queue import ImportOptions, QueueReader
from penstock.broker.nsqimport.records import Damage, Records
from penstock.broker.nsqimport.report import FileReport, QueueReport

__all__ = [
    "Damage",
    "FileReport",
    "ImportOptions",
    "NsqdChannel",
    "NsqdFolder",
    "NsqdTopic",
    "QueueName",
    "QueueReader",
    "QueueReport",
    "Records",
]
