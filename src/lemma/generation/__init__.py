"""Generation: sampling, the decoding engine, loops, beam search."""
