"""Stages 5 and 7, the wire: moves frames between workers, decides nothing."""
