"""Scheduling: when which component runs, and on which thread."""
