"""What a channel knows of its messages: pure, without sockets, files, loop or clock."""
