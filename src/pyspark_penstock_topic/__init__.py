"""Makes Spark know `format("penstock.topic")` where Penstock is installed.

See `pyspark_penstock`.
"""

from penstock.spark.topic.source import TopicSource as DefaultSource

__all__ = ["DefaultSource"]
