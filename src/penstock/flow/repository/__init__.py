"""Where FlowFiles are durable: the journal and the swap files."""
