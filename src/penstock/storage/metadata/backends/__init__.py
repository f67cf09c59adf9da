"""Differences between SQLite and PostgreSQL: engines, limits, and the meaning of errors."""
