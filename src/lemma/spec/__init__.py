"""Frozen descriptions of models, data, training and studies. No torch in this room."""
