"""Running flow: combines repositories, queues, sessions, scheduler and graph."""
