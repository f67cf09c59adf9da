"""Formats of records, each read and written as batches of Arrow columns."""
