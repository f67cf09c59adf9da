"""Datasources as tables of an Apache Iceberg catalog."""
