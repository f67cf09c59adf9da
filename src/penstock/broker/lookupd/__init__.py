"""nsqlookupd: registration of the broker's topics, and looking up channels for new topics."""
