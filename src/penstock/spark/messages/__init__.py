"""Formats of stream messages besides JSON, and the columns of records."""
