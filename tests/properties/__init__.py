"""Properties for all inputs, tested with Hypothesis."""
