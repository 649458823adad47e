"""Adapting any model: frozen, full, with adapters after its modules, or with LoRA on its matrices."""
