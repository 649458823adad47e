"""Data: text, tokenizers, tables, labels, pairs, trees, images, graphs; their splits and batches. No torch here."""
