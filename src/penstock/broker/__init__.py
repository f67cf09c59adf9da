"""The broker: topics and channels of messages, over HTTP and NSQ's TCP protocol."""
