"""Swap files: FlowFiles of a queue on disk, in Penstock's columnar format and in NiFi's formats."""
