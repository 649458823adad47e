"""Checks of the source tree that `make check` runs: vocabulary and line budget."""
