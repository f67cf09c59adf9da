"""Datasources as Delta tables: logs over the files of segments."""
