"""NiFi's swap files: reads all formats, and writes the current one."""
