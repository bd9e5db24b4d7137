"""All decisions of the engine: pure code without sockets, threads, clocks or environment variables."""
