"""Each rank's share of the data: which samples it takes, and how much they weigh in the gradients."""
