"""Import of NiFi's swapped FlowFiles: from its files into a connection, once."""
