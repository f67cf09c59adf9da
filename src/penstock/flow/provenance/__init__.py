"""Provenance of FlowFiles: the events of each commit, kept for a time."""
