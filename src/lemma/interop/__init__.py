"""Other libraries' files, both ways."""

from lemma.interop.peft import read_peft, write_peft

__all__ = ["read_peft", "write_peft"]
