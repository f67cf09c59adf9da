"""SQL of users: allowed statements, queries and their limits, and translated errors of Spark."""
