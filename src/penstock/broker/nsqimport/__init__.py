"""Import of an nsqd's data folder: reads intact messages, and creates topics from them."""

from penstock.broker.nsqimport.folder import NsqdFolder
from penstock.broker.nsqimport.load import ImportedTopic, NsqImport
from penstock.broker.nsqimport.metadata import NsqdChannel, NsqdTopic, QueueName
from penstock.broker.nsqimport.queue import ImportOptions, QueueReader
from penstock.broker.nsqimport.records import Damage, Records
from penstock.broker.nsqimport.report import FileReport, QueueReport

__all__ = [
    "Damage",
    "FileReport",
    "ImportOptions",
    "ImportedTopic",
    "NsqImport",
    "NsqdChannel",
    "NsqdFolder",
    "NsqdTopic",
    "QueueName",
    "QueueReader",
    "QueueReport",
    "Records",
]
