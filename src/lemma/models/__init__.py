"""The families: one file each, and `build` from spec to module."""
