"""Processors for records: they convert, split, merge and validate them, batch by batch."""
