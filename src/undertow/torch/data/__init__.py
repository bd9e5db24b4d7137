"""Each rank's share of the data: its samples, and their weight in the gradients."""
