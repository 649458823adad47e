"""Text as tokens: tokenizers, corpora, labels, pairs, trees, splits, the token store, batches. No torch here."""
