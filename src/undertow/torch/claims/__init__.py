"""Claims of wrappers on their parameters, and the check that optimizers step with synchronised gradients."""
