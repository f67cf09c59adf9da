"""Storage: disk queues, journals, content of FlowFiles, and the metadata store."""
