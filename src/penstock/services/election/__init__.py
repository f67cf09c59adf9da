"""Who leads a service: standing for election, leading, being deposed."""
