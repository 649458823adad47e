"""Exercises of every kind: what a question states, how an answer is read, checked and explained."""
