"""What a model does: its attention heads and its trees."""
