"""What crosses a process border in shared memory: items towards the learner, models towards whoever acts."""
