"""A flow at work: repositories, queues, sessions, scheduler and graph put together."""
