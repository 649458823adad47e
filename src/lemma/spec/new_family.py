"""A family of language models that another package brings."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from lemma.spec.data import BytePairs, Characters, Words
from lemma.spec.family import Family
from lemma.spec.packages import Group


class NewFamily(Family):
    """The spec of a family from elsewhere: its words, and where the model is.

    A subclass has its name as `family: Literal["bag"] = "bag"`, a default for every word, and `model`. Its module
    should not import torch, so that lists and help stay quick; `model` is imported when one is built.
    """

    model: ClassVar[str] = ""
    """A `lemma.models.LanguageModel`, as package.module:Class; it is called with a spec and the dropout."""
    recipe: ClassVar[Mapping[str, Any]] = {}
    """Words of the recipe that suit it."""
    tokenizer: ClassVar[Characters | Words | BytePairs | None] = None
    """How its texts are cut unless told otherwise; byte-pairs if unset."""
    ladders: ClassVar[Mapping[str, Sequence[int]]] = {}
    """By letter, the sizes at which the ledger may probe it, where not any small ones will do."""

    if TYPE_CHECKING:
        family: Any

    @property
    def longest(self) -> int | None:
        """The most tokens that it reads at once; None if there is no such bound."""
        return None


def _own() -> set[str]:
    from lemma.spec.presets import OWN  # it is made of all families

    return OWN


NEW_FAMILIES: Group[NewFamily] = Group("lemma.families", "family", NewFamily, "family", _own)
"""What other packages bring."""
