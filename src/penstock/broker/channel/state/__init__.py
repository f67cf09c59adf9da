"""State of a channel's messages: pure, without sockets, files, loop or clock."""
