"""The HTTP server that all of Penstock shares: uvicorn with limits, host checks and metrics."""
