"""Virtual hosts: a clock, processes on it, arbiters and workers that take turns; for the simulator and fault driver."""
