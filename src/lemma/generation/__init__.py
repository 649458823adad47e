"""Text from a model, token by token through its state, with proof of a loop where there is one."""

from lemma.generation.beam import Beam, translate
from lemma.generation.decode import OnToken, generate
from lemma.generation.generated import Generated, Generation
from lemma.generation.hypotheses import Translation
from lemma.generation.loops import Loop
from lemma.generation.sampling import Sampling, choose, probabilities
from lemma.generation.text import OnText, generate_text
from lemma.generation.translating import Translated, translate_texts

__all__ = [
    "Beam",
    "Generated",
    "Generation",
    "Loop",
    "OnText",
    "OnToken",
    "Sampling",
    "Translated",
    "Translation",
    "choose",
    "generate",
    "generate_text",
    "probabilities",
    "translate",
    "translate_texts",
]
