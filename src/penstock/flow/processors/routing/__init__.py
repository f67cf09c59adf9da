"""Processors that look at a FlowFile and decide where it goes, or what its attributes are."""
