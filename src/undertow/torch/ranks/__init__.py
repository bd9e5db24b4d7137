"""Ranks of torch process groups as groups of undertow, and comparison of their replicas."""
