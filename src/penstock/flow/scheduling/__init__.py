"""Scheduling: when which component runs, on which thread, and what it costs when nothing does."""
