"""Batch tasks on Spark: files, URLs, segments and queries become final segment files."""
