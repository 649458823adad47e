"""Generation from text to text."""

from collections.abc import Callable, Sequence

from lemma.data import Tokenizer
from lemma.errors import DataError
from lemma.generation.decode import generate
from lemma.generation.generated import Generated, Generation
from lemma.generation.kinds import refuse_type
from lemma.generation.sampling import Sampling
from lemma.generation.spelling import Spelling
from lemma.models import LanguageModel

OnText = Callable[[int, str], object]
"""Is called with a prompt's number and the next piece of its text, whole characters only; True ends that text there."""


def generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Sampling,
    on_text: OnText | None = None,
) -> list[Generation]:
    """Continue each prompt.

    A prompt without tokens starts from `<eos>`; if the tokenizer has none, from a newline; if its alphabet has none,
    from token 0.
    """
    for prompt in prompts:
        refuse_type("prompt", prompt, str, "a text")
    encoded = [tokenizer.encode(prompt).tolist() for prompt in prompts]
    spellings = [Spelling(tokenizer, ids) for ids in encoded]

    def tell(row: int, piece: str) -> bool:
        return on_text is not None and bool(piece) and on_text(row, piece) is True

    def spell(row: int, token: int) -> bool:
        return tell(row, spellings[row].add(token))

    starts = [ids or [_beginning(tokenizer)] for ids in encoded]
    results = generate(model, starts, settings, eos=tokenizer.eos, on_token=spell if on_text else None)
    for row, spelling in enumerate(spellings):
        tell(row, spelling.rest())
    return [_generation(tokenizer, *one) for one in zip(prompts, encoded, results, strict=True)]


def _beginning(tokenizer: Tokenizer) -> int:
    if tokenizer.eos is not None:
        return tokenizer.eos
    try:
        return int(tokenizer.encode("\n")[0])
    except DataError:
        return 0


def _generation(tokenizer: Tokenizer, prompt: str, before: list[int], result: Generated) -> Generation:
    """Spell all tokens at once, behind the prompt's last one, which may call for a space."""
    last = before[-1:]
    text = tokenizer.decode([*last, *result.tokens])[len(tokenizer.decode(last)) :]
    speed = len(result.tokens) / result.seconds if result.seconds else 0.0
    return Generation(prompt, text, result.tokens, result.loop, result.stopped, speed)
