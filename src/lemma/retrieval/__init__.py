"""Searching by what both towers see: the index of pictures, the exact ranking, what was found."""
