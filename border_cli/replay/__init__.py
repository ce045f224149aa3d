"""Step processors, the replay buffer and the ratio limiter."""
