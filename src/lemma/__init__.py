"""Lemma: a workbench for language models in which the mathematics and the machine agree."""
