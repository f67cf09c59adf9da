"""Process sessions: what a processor does to FlowFiles, as one transaction."""
