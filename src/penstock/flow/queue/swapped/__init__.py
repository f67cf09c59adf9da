"""FlowFiles in swap files: cursors that read them in order, window by window."""
