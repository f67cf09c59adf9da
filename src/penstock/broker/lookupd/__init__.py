"""The broker and NSQ's directory: telling nsqlookupd what is here, and answering in its place."""
