"""Datasources as Apache Iceberg tables: schema, manifests, metadata and scan filters. No HTTP."""
