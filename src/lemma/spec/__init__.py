"""Frozen descriptions of models, data, training and studies. Does not import torch."""
