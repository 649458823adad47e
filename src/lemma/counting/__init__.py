"""Formulas read off the real module, proved against it."""
