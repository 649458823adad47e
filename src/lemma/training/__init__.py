"""Training: one loop, exact resume, any number of processes, and warnings that save a day."""
