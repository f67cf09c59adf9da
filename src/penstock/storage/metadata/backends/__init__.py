"""What is different between SQLite and PostgreSQL: engines, limits, and what errors mean."""
