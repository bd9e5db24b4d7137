"""Fault driver: the real engine of several workers in one thread, and a seed that decides what goes wrong."""
