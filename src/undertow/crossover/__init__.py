"""Crossover: several jobs share the same devices, and one computes while another waits for the network."""
