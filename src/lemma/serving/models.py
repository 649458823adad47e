"""The model behind a served run: what it answers, its engine, and its pages."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from lemma.counting.count import count
from lemma.counting.subject import resolve_subject
from lemma.errors import InputError
from lemma.generation.beam import Beam, TranslatedText, translate_texts
from lemma.generation.engine import BatchEngine
from lemma.generation.sampling import Sampling, TokenLogprob
from lemma.generation.sequences import TextEvent, TextRequest
from lemma.inspection.heads import look_at_run
from lemma.inspection.page import render_page
from lemma.models.dual_encoder import DualEncoderModel
from lemma.models.encoder_decoder import EncoderDecoderModel
from lemma.models.transformer import EncoderModel
from lemma.random_state import unchanged_random_state
from lemma.retrieval.embedding import embed_inputs
from lemma.runs.load import Run
from lemma.tasks.classification import Classification, classify_texts
from lemma.tasks.registry import task_info

__all__ = ["Classification", "Run", "ServedModel", "TextEvent", "TextRequest", "TokenLogprob", "TranslatedText"]

Precision = Literal["auto", "float32", "bfloat16"]


class ServedModel:
    """The calls into generation, tasks, retrieval, inspection and counting that serving a run needs.

    Attributes:
        answer_kind: what it makes of a text: `prompt` (continues it), `translation`, `class` or `vectors`.
        has_attention: whether it has attention heads to look at.
    """

    def __init__(self, run: Run, precision: Precision) -> None:
        self.run = run
        self.precision: Precision = precision
        if isinstance(run.module, EncoderModel | DualEncoderModel):
            self.answer_kind = "vectors"
        else:  # `run.model` refuses a run of another kind, and names its use
            self.answer_kind = task_info(run.spec).answers or str(run.model)
        self.has_attention = self._can_look()

    def _can_look(self) -> bool:
        try:
            return bool(look_at_run(self.run, self.run.tokenizer.token_strings([0])[0]))
        except InputError:
            return False

    def make_engine(self, rows: int) -> BatchEngine:
        """Return an engine that generates this many sequences at once."""
        dtype = Sampling(precision=self.precision).dtype(next(self.run.module.parameters()).device)
        return BatchEngine(self.run.merge_lora().model, self.run.tokenizer, rows, dtype=dtype)

    def make_request(self, prompt: Sequence[int], settings: Mapping[str, Any], **options: Any) -> TextRequest:
        """Return a request to the engine; settings that are not given are the model's, or those of OpenAI's API."""
        names = Sampling.__dataclass_fields__
        defaults = {name: value for name, value in self.run.tokenizer.sampling.items() if name in names}
        return TextRequest(tuple(prompt), Sampling(**{"temperature": 1.0, **defaults, **settings}), **options)

    def answer(self, texts: Sequence[str], max_tokens: int) -> list[Classification] | list[TranslatedText]:
        """Classify or translate texts."""
        if self.answer_kind == "class":
            return classify_texts(self.run, texts)
        model = self.run.merge_lora().require(EncoderDecoderModel, "a translator, which answers a source")
        return translate_texts(model, self.run.tokenizer, texts, Beam(tokens=max_tokens))

    def embed(self, inputs: Sequence[str | list[int]]) -> tuple[list[list[float]], int]:
        """Return the vectors of texts, or of their tokens, and the number of tokens."""
        return embed_inputs(self.run, inputs)

    def look(self, text: str) -> Callable[[], str]:
        """Run the model on a text; return the function that renders the page of its heads without the model."""
        return partial(render_page, look_at_run(self.run, text))

    @unchanged_random_state()
    def count_page(self) -> str:
        """Return the formulas of the model as HTML."""
        return count(resolve_subject(self.run.path))._repr_html_()
