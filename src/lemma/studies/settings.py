"""Settings that a study distributes over its runs, and those that it sets itself."""

from collections.abc import Iterable, Mapping

from lemma.errors import SpecError
from lemma.spec.base import Spec

FROM_TOKENIZER = "It comes from the tokenizer, the same for every run: set {}tokenizer.vocabulary."
RESERVED_SETTINGS = {
    "vocabulary": FROM_TOKENIZER.format("data."),
    "V": FROM_TOKENIZER.format("data."),
    "seed": "Give the study `seeds`, as in seeds=[1,2,3].",
    "family": "Name another model, as in model = 'lstm'.",
}
"""Why a setting cannot be set for single runs of a study of language models."""


def has_setting(specs: Mapping[str, type[Spec]], setting: str) -> bool:
    """Return whether one of these specs has a setting of that name."""
    return any(setting.partition(".")[0] in spec.setting_names() for spec in specs.values())


def check_reserved(settings: Iterable[str], reserved: Mapping[str, str]) -> None:
    """Raise an error for a setting that the study sets itself, and say where it comes from."""
    for setting in settings:
        if setting in reserved:
            raise SpecError(f"study: '{setting}' is not a setting of single runs. {reserved[setting]}")
