"""The fault driver: the real engine of many workers in one thread, and a seed that decides what goes wrong."""
