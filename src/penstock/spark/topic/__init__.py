"""Reading topics in Spark: the data source, and messages parsed into typed Arrow columns."""
