"""Durable storage of FlowFiles: the journal and the swap files."""
