"""Generate tokens and text from a model: read the prompt once, then one token at a time through the state."""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from lemma.data.tokenizers import Tokenizer
from lemma.errors import InputError
from lemma.generation.detokenizer import strip_partial_character
from lemma.generation.engine import MAX_PROMPT_LOGITS, BatchEngine
from lemma.generation.loops import TextLoop
from lemma.generation.sampling import Sampling, TokenLogprob, check_tokens, check_type
from lemma.generation.sequences import GeneratedTokens, StopReason, TextEvent, TextRequest, TokenSequence
from lemma.models.base import LanguageModel, evaluating
from lemma.report.numbers import make_visible
from lemma.report.result import Block, Pre, Result, Table, Text, as_text
from lemma.report.text import wrap_lines

MAX_ROWS = 256  # sequences of different lengths that are generated at once
OnToken = Callable[[int, int], object]
"""Called with a row's index and its next token as soon as that is sampled; True ends the row there."""
OnText = Callable[[int, str], object]
"""Called with a text's index and its next piece, complete characters only; True ends that text there."""
Piece = TypeVar("Piece")
Output = TypeVar("Output")


@dataclass(frozen=True)
class Generation(Result):
    """The text generated after a prompt.

    Attributes:
        tokens: all generated tokens: also those that spell a stop string, before which the text ends.
        logprobs: of each of the tokens, if they were asked for.
        seed: the seed that was drawn, if none was given: with it the same text comes again.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    loop: TextLoop | None
    stopped: StopReason
    tokens_per_second: float
    logprobs: tuple[TokenLogprob, ...] | None = None
    seed: int | None = None

    @property
    def title(self) -> str:
        return "generated text"

    @property
    def note(self) -> str:
        """A line about the loop, and one about the seed that was drawn; empty without both."""
        lines = [f"loop: {self.loop}" if self.loop else "", "" if self.seed is None else f"seed: {self.seed}"]
        return "\n".join(line for line in lines if line)

    @property
    def notes(self) -> str:
        """Text below the generated one: the loop, the seed, and the log-probabilities."""
        tables = as_text(self._tables())
        return "\n".join(([wrap_lines(self.note)] if self.note else []) + (["", tables] if tables else []))

    def _tables(self) -> list[Block]:
        if self.logprobs is None:
            return []
        rows = [
            (
                make_visible(logprob.text),
                f"{logprob.logprob:.3f}",
                ", ".join(f"{make_visible(other.text)} {other.logprob:.3f}" for other in logprob.top),
            )
            for logprob in self.logprobs
        ]
        columns = 3 if any(logprob.top for logprob in self.logprobs) else 2
        header = ("token", "log p", "most likely")[:columns]
        breakable = (2,) if columns == 3 else ()
        return [Table(header, [row[:columns] for row in rows], left=(0, 2), breakable=breakable)]

    def blocks(self) -> Iterable[Block]:
        yield Pre([(self.prompt, "prompt"), (self.text, "")])
        if self.note:
            yield Text(self.note, "note")
        yield from self._tables()

    def __str__(self) -> str:  # the text as it is, never wrapped
        return f"{self.prompt}{self.text}\n{self.notes}".rstrip("\n")


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int] | np.ndarray],
    settings: Sampling,
    *,
    eos: int | None = None,
    on_token: OnToken | None = None,
) -> list[GeneratedTokens]:
    """Continue each prompt, `settings.samples` times, through the model's state, never reading a token twice.

    (A decoder whose window is full moves all its positions at each token, and therefore reads its window again.)

    Prompts of equal length run as one batch, and equal ones are read once. Each row has random numbers of its own,
    seeded by seed + row, and does not depend on other rows. Only the rounding of batched matrix products may differ in
    the last bit from that of the row alone: so a choice can differ where tokens are equally likely up to that bit, and
    nowhere else.
    """
    if settings.stop:
        raise InputError(f"stop = {settings.stop!r}: stop strings need a tokenizer. Use generate_text, or stop_tokens.")
    token_lists: list[list[int]] = []
    for index, prompt in enumerate(prompts):
        tokens = [int(token) for token in prompt]
        if not tokens:
            raise InputError(f"prompt {index} has no tokens; a model needs at least one to start from, such as <eos>.")
        check_tokens(f"prompt {index}", tokens, model.spec.vocabulary)
        token_lists.append(tokens)
    callback = (lambda row, event: event.token is not None and on_token(row, event.token)) if on_token else None
    events = _run_engine(model, None, token_lists, settings, eos, stream=on_token is not None)
    return [sequence.result() for sequence in run_to_end(events, callback)]


def generate_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Sampling,
    on_text: OnText | None = None,
    max_prompt_tokens: int | None = None,
) -> list[Generation]:
    """Continue each prompt, `settings.samples` times; the texts of a prompt follow each other.

    A prompt without tokens starts from `<eos>`; if the tokenizer has none, from a newline; if its alphabet has none,
    from token 0. Of a prompt with more than `max_prompt_tokens` tokens, only the last ones are read.
    """
    return run_to_end(_stream_pieces(model, tokenizer, prompts, settings, on_text is None, max_prompt_tokens), on_text)


@torch.inference_mode()
def stream_text(
    model: LanguageModel, tokenizer: Tokenizer, prompts: Sequence[str], settings: Sampling
) -> Generator[tuple[int, str], object, list[Generation]]:
    """Yield each text's index and its next piece, complete characters only; True sent back ends that text there."""
    return (yield from _stream_pieces(model, tokenizer, prompts, settings))


@torch.inference_mode()
def run_to_end(
    steps: Generator[tuple[int, Piece], object, Output], callback: Callable[[int, Piece], object] | None
) -> Output:
    """Run a generation to its end, passing each piece to the callback as it comes; return its result."""
    answer: object = None
    with closing(steps):
        while True:
            try:
                index, piece = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = callback(index, piece) if callback else None


def _stream_pieces(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    settings: Sampling,
    only_results: bool = False,
    max_prompt_tokens: int | None = None,
) -> Generator[tuple[int, str], object, list[Generation]]:
    """Yield the pieces of all texts as they come; with `only_results` none, and each text is decoded at its end."""
    for prompt in prompts:
        check_type("prompt", prompt, str, "a text")
    encoded = [
        tokenizer.encode(prompt)[-max_prompt_tokens if max_prompt_tokens else 0 :].tolist() for prompt in prompts
    ]
    decodes_pieces = bool(settings.stop) or not only_results
    texts = [""] * (len(prompts) * settings.samples)
    steps = _run_engine(model, tokenizer, encoded, settings, decode_text=decodes_pieces, stream=decodes_pieces)
    answer: object = None
    with closing(steps):
        while True:
            try:
                index, event = steps.send(answer)
            except StopIteration as end:
                sequences: list[TokenSequence] = end.value
                break
            texts[index] += event.text
            answer = (yield index, event.text) if event.text else None
    generations: list[Generation] = []
    for index, sequence in enumerate(sequences):
        result, prompt_index = sequence.result(), index // settings.samples
        if not decodes_pieces:
            previous = encoded[prompt_index][-1:]  # it may call for a space
            text = tokenizer.decode([*previous, *result.tokens])[len(tokenizer.decode(previous)) :]
            texts[index] = strip_partial_character(tokenizer, text)
        speed = len(result.tokens) / result.seconds if result.seconds else 0.0
        prompt, text = prompts[prompt_index], texts[index]
        generations.append(Generation(prompt, text, result.tokens, result.loop, result.stopped, speed, result.logprobs))
    return generations


def _run_engine(
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    prompts: Sequence[Sequence[int]],
    settings: Sampling,
    eos: int | None = None,
    decode_text: bool = False,
    stream: bool = True,
) -> Generator[tuple[int, TextEvent], object, list[TokenSequence]]:
    """Yield the engine's events, each with the index of its text; True sent back ends that text there."""
    count, same_length = settings.samples, len({len(prompt) or 1 for prompt in prompts}) == 1
    rows, device = max(1, count * len(prompts)), next(model.parameters()).device
    if device.type == "cuda":
        from lemma.generation.cuda_graphs import MIN_GRAPH_TOKENS  # needed on a GPU only

        same_length = same_length or settings.tokens < MIN_GRAPH_TOKENS
    dtype = settings.dtype(device)
    with evaluating(model):
        rows = rows if same_length else min(rows, MAX_ROWS)
        engine = BatchEngine(model, tokenizer, rows, MAX_PROMPT_LOGITS, dtype, eos, same_length)
        sequences: list[TokenSequence] = []
        for index, prompt in enumerate(prompts):
            request = TextRequest(tuple(prompt), settings, count * index, decode_text=decode_text, stream=stream)
            sequences += engine.add(request)
        try:
            while engine.is_busy:
                for event in engine.step():
                    if event.error:
                        raise event.error
                    index = event.request.first_row + event.index
                    sequence, is_ended = sequences[index], (yield index, event) is True
                    if is_ended and not sequence.stop_filter.has_stopped:
                        sequence.stop("told")
                        if not event.result and (last := sequence.finish()).text:
                            yield index, last
        finally:
            engine.close()
    return sequences
