"""The documents of ``/stats`` and ``/info``: NSQ's fields, and additional ones."""
