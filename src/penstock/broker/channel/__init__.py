"""A channel of a topic: deliveries to consumers, the states of messages, and their journal."""
