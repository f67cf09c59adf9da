"""Processors for HTTP, as a server and as a client."""
