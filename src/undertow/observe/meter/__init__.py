"""The speed of a worker while it trains: measured here, shown by the live view."""
