"""Models that only pretend to compute: published times and sizes, real modules, real hooks."""
