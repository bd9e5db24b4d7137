"""Stages 5 and 7, the wire: transport of frames between workers, without any decisions."""
