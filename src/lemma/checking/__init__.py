"""Checking derivations: formulas, numbers, gradients, identities, worked cases, sheets, the claims of the sources."""
