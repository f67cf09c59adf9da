"""Rows brought together before the JVM transforms and filters them, as it then has few to do."""
