"""Horovod's modules that belong to no framework: `import horovod.common.util` and its like find them."""
