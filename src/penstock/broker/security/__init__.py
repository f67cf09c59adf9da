"""Access control of the broker: TLS, and the permissions of authorization servers."""
