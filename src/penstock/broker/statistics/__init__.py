"""What ``/stats`` and ``/info`` say: NSQ's documents, and beside their fields ours."""
