"""The models of the zoo at a size that a CPU can train, and a small GPT, really trained."""
