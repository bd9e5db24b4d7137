"""Everything that decides, without sockets, threads, clocks or environment."""
