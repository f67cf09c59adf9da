"""Datasources as Delta tables, which the router writes."""
