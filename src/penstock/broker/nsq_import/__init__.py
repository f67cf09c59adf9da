"""Import of an nsqd's data folder: reads intact messages, and creates topics from them."""

from penstock.broker.nsq_import.data_folder import NsqdFolder
from penstock.broker.nsq_import.importer import ImportedTopic, NsqImport
from penstock.broker.nsq_import.metadata import NsqdChannel, NsqdTopic, QueueName
from penstock.broker.nsq_import.queue_reader import ImportOptions, QueueReader
from penstock.broker.nsq_import.records import Damage, Records
from penstock.broker.nsq_import.report import FileReport, QueueReport

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
