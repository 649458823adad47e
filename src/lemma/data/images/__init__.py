"""Pictures and their captions: by name or out of a folder, decoded once, kept as pixels, batched with tokens."""
