"""Each rank's share of a batch, and the weight of its loss in the gradients."""
