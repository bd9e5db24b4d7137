"""Each rank's share of the data: which samples it takes, and what they weigh in the gradients."""
