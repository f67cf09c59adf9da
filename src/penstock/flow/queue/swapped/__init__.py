"""FlowFiles in swap files: runs that are read in order, by windows."""
