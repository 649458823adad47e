"""Graphs whose nodes are to be classified: by name, generated, or a person's own."""
