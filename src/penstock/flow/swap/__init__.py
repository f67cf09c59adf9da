"""Swap files: FlowFiles of a queue on disk, our own columnar ones and NiFi's."""
