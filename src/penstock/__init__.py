"""Penstock: durable event ingestion on Spark; topics in, versioned segments and SQL out."""

__version__ = "0.1.0"
