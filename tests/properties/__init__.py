"""Properties that hold for all inputs, sought out by Hypothesis."""
