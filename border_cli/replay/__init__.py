"""Step processors and the replay buffer."""
