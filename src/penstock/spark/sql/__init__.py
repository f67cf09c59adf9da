"""SQL that users ask in: what may be asked, queries and their limits, words for what Spark says."""
