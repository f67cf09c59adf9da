"""Bringing NiFi's swapped FlowFiles along: from its files into a connection, once."""
