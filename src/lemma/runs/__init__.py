"""The run folder: atomic files, checkpoints, integrity, and the way back to a model."""
