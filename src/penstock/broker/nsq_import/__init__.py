"""Import of an nsqd's data folder: reads intact messages, and creates topics from them."""

from penstock.broker.nsq_import.data_folder import NsqdFolder
from penstock.broker.nsq_import.importer import ImportedTopic, NsqImport
from penstock.broker.nsq_import.metadata import NsqdChannel, NsqdTopic, QueueName
from penstock.broker.nsq_import.queue_reader import NsqdQueueReader, NsqImportOptions
from penstock.broker.nsq_import.records import NsqdDamage, NsqdRecords
from penstock.broker.nsq_import.report import NsqFileReport, QueueReport

__all__ = [
    "ImportedTopic",
    "NsqFileReport",
    "NsqImport",
    "NsqImportOptions",
    "NsqdChannel",
    "NsqdDamage",
    "NsqdFolder",
    "NsqdQueueReader",
    "NsqdRecords",
    "NsqdTopic",
    "QueueName",
    "QueueReport",
]
