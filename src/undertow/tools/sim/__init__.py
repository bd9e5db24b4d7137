"""The simulator: the engine's own code on a virtual clock and virtual links."""
