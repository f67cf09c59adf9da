"""Processors for topics: consume messages and publish them."""
