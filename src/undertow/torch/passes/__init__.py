"""Backward passes: which of them are synchronised, and when each begins and ends."""
