"""The command line: one file a verb, and no mathematics."""
