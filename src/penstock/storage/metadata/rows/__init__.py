"""Frozen records that the metadata store takes and returns. They are free of SQL.

Payloads are JSON objects that the store does not interpret. Times are epoch milliseconds, intervals
half open. The store sets `created_ms` and similar fields when it inserts a row; the caller may
leave them at 0.
"""
