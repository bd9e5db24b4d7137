"""Which backward passes are synchronised, and when each begins and ends."""
