"""Processors of flows whose work Spark does: SparkSQL and SparkScript."""
