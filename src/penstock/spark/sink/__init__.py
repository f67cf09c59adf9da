"""Writes of Spark into datasources: of DataFrames and of streaming queries."""
