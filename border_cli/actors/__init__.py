"""The actor loop, its process, the manager, and what crosses between actors and learner."""
