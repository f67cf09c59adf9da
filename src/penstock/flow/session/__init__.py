"""Process sessions: the operations of a processor on FlowFiles, as one transaction."""
