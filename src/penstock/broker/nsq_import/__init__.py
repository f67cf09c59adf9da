"""Import of an nsqd's data folder: reads intact messages, and creates topics from them."""

from penstock.broker.nsq_import.metadata import NsqdChannel, NsqdTopic, QueueName
from penstock.broker.nsq_import.nsqd_data_folder import NsqdFolder
from penstock.broker.nsq_import.nsqd_records import NsqdDamage, NsqdRecords
from penstock.broker.nsq_import.queue_reader import NsqdQueueReader, NsqImportOptions
from penstock.broker.nsq_import.report import NsqFileReport, QueueReport
from penstock.broker.nsq_import.topic_import import ImportedTopic, NsqImport

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
