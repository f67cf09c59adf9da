"""Events about the operation of a process, and their sinks, which never block other work."""
