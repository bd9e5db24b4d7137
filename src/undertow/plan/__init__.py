"""Stage 2, the plan: which slices a tensor is cut into, and which shard owns them."""
