"""Druid's native queries: JSON in, a statement of SQL and the shape of its answer out.

Nothing here runs a query: `penstock.services.api.native` does, with the service that runs SQL, so
rights, row filters, quotas, the audit and cancelling are those of SQL.
"""
