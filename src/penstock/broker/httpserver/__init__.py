"""The HTTP server that all of Penstock shares: uvicorn with bounds, host checks and counts."""
