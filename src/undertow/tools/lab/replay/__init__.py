"""Models that only pretend to compute: published times and sizes, but real modules and hooks."""
