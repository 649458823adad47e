"""Adapting any model: a frozen body, all of it, adapters behind its modules, or LoRA beside its matrices."""
