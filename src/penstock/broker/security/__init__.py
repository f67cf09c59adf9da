"""Who may speak to the broker: TLS, and what authorization servers allow."""
