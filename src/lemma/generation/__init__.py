"""Text from a model, token by token through its state, with proof of a loop where there is one."""

from lemma.generation.decode import OnToken, generate
from lemma.generation.generated import Generated, Generation
from lemma.generation.loops import Loop
from lemma.generation.sampling import Sampling, choose, probabilities
from lemma.generation.text import OnText, generate_text

__all__ = [
    "Generated",
    "Generation",
    "Loop",
    "OnText",
    "OnToken",
    "Sampling",
    "choose",
    "generate",
    "generate_text",
    "probabilities",
]
