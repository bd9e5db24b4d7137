"""The engine: one thread that runs the pure core over real sockets."""
