"""Virtual hosts for the simulator and the fault driver: a clock, processes, arbiters and workers that take turns."""
