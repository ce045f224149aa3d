"""Training: the loop, evaluation and the choice of the best model."""
