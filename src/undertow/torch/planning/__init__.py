"""What torch measures and tells for a plan."""
