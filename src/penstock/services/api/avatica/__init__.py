"""Avatica's JSON protocol, which Druid's JDBC driver speaks."""
