"""Requests under way: from a checked request to a queue of pieces of text."""

import asyncio
import secrets
import struct
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from lemma.errors import InputError
from lemma.generation.sampling import INCOMPLETE
from lemma.generation.sequences import TextEvent, TextRequest
from lemma.serving.formats import AnswerItems, FinishedText, TextPiece
from lemma.serving.requests import MAX_PROMPT_TOKENS, AnyRequest, ApiError, ChatRequest, EmbeddingRequest
from lemma.serving.runs import ServedRun
from lemma.tasks.classification import Classification

ANSWER_FIELDS = {  # of a request to a translator or a classifier, which do not sample
    *("model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "echo")
}
# values of other fields that ask for nothing
NO_SAMPLING = {"temperature": (0, 0.0), "top_p": (1, 1.0), "n": (1,), "logprobs": (False,), "stop": ([],)}


class GenerationJob:
    """A completion or chat request that is being answered.

    `prepare` reads the prompts in a worker thread, `start` hands them to the run's thread, and `items` yields what
    comes back until every text is finished. `release` must be called at the end.
    """

    def __init__(self, served: ServedRun, request: AnyRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.served, self.request, self.loop = served, request, loop
        self.seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        self.started, self.first_event_at = time.monotonic(), 0.0
        self.prompts: list[str] = []
        self.rows = self.max_tokens = self.prompt_tokens = self.num_cut_tokens = 0
        self.is_in_engine = False
        self._requests: list[TextRequest] = []
        self._queue: asyncio.Queue[list[TextPiece | FinishedText | Exception]] = asyncio.Queue()
        served.admit(self)
        limit = served.limits.seconds
        message = f"the request took more than {limit:g} s. Ask for fewer tokens, or try again later."
        self._timer = loop.call_later(limit, self.fail, ApiError(504, message, code="timeout"))

    @property
    def seconds_left(self) -> float:
        """Seconds until the request's time limit, at least 0.001."""
        return max(0.001, self.started + self.served.limits.seconds - time.monotonic())

    async def prepare(self) -> None:
        """Tokenize the prompts in a worker thread; raise an error for requests that the run cannot answer."""
        served = self.served
        prepare = self._build_requests if served.generates_text else self._store_texts
        work = (served.chat_threads if self._uses_chat_template else served.prepare_threads).submit(prepare)
        self._queue_result(work)
        try:
            error = next(iter(await self._queue.get()), None)
            if isinstance(error, Exception):
                raise error
        finally:
            work.cancel()
        self.rows = len(self.prompts) * self.request.num_choices
        served.check_waiting_tokens(self)

    def start(self) -> None:
        """Schedule the prepared request in the thread of the run's model."""
        work = self._add_to_engine if self.served.generates_text else self._answer_texts
        self._queue_result(self.served.thread.submit(work))

    def _queue_result(self, work: "Future[Any]") -> None:
        """Queue the list that the work returns, or its error, for `items` when it is done and not cancelled."""

        def queue(done: "Future[Any]") -> None:
            if not done.cancelled():
                error = done.exception()
                items: list[Any] = [error] if isinstance(error, Exception) else done.result() or []
                with suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(self._queue.put_nowait, items)

        work.add_done_callback(queue)

    def release(self) -> None:
        """Free what the request holds; called after its last text, or when the client has left."""
        served = self.served
        if self not in served.jobs:
            return
        served.jobs.discard(self)
        self._timer.cancel()
        if served.generates_text and self._requests:
            thread = served.thread
            thread.submit(lambda: thread.engine and thread.engine.cancel(self))
        seconds = time.monotonic() - self.started
        served.average_seconds += 0.1 * (seconds - served.average_seconds)
        served.metrics.observe("lemma_request_seconds", seconds, model=served.name)

    def fail(self, error: Exception) -> None:
        """End the request with an error, which `prepare` or `items` raises."""
        self._queue.put_nowait([error])

    async def items(self) -> AsyncIterator[AnswerItems]:
        """Yield pieces and ends of texts as they arrive, pieces of one text joined; raise the request's error."""
        num_finished, queue = 0, self._queue
        while num_finished < self.rows:
            received = await queue.get()
            while not queue.empty():
                received += queue.get_nowait()
            if not received:
                continue
            items: AnswerItems = []
            pending: dict[int, list[str]] = {}  # text of each row that is not in `items` yet
            for item in received:
                if isinstance(item, Exception):
                    raise self.served.error_if_gone(item)
                if isinstance(item, TextPiece) and not item.logprobs:
                    pending.setdefault(item.row, []).append(item.text)
                    continue
                if item.row in pending:
                    items.append(TextPiece(item.row, "".join(pending.pop(item.row))))
                num_finished += isinstance(item, FinishedText)
                items.append(item)
            yield [*items, *(TextPiece(row, "".join(texts)) for row, texts in pending.items())]

    # Preparing, in a worker thread.

    @property
    def _uses_chat_template(self) -> bool:
        """True for a chat request to a model whose tokenizer has a chat template."""
        has_template = self.served.generates_text and self.served.run.tokenizer.has_chat_template
        return isinstance(self.request, ChatRequest) and has_template

    def _build_requests(self) -> None:
        """Tokenize the prompts, or the chat by its template, and store a request to the engine for each."""
        served, request, tokenizer = self.served, self.request, self.served.run.tokenizer
        self.max_tokens = request.resolve_max_tokens(served.limits.tokens)
        prompts, param = request.prompts, "prompt"
        if isinstance(request, ChatRequest):
            param = "messages"
            if self._uses_chat_template:
                system = "developer" if tokenizer.has_role("developer") else "system"
                roles = {"developer": system}  # the newer name of the same role, which few templates know
                messages = [{"role": roles.get(m.role, m.role), "content": m.text} for m in request.messages]
                prompts = [tokenizer.chat(messages)]
        settings = {
            **request.sampling_settings(),
            "tokens": max(1, self.max_tokens),
            "seed": self.seed,
            "samples": request.num_choices,
            "logprobs": request.num_top_logprobs,
        }
        for number, prompt in enumerate(prompts):
            tokens = self._fit_context(encode_prompt(served, prompt, param), param)
            self.prompt_tokens += len(tokens)
            is_unchanged = isinstance(prompt, str) and not self.num_cut_tokens
            self.prompts.append(str(prompt) if is_unchanged else tokenizer.decode(tokens))
            self._requests.append(
                served.make_request(
                    tokens,
                    settings,
                    first_row=number * request.num_choices,
                    owner=self,
                    score_prompt=bool(request.echo) and request.num_top_logprobs is not None,
                    generates=self.max_tokens > 0,
                )
            )

    def _fit_context(self, tokens: list[int], param: str) -> list[int]:
        """Return a prompt's tokens, the last ones if truncation was asked for; refuse more than the context.

        `param` is the request's field of the prompt, for the error.
        """
        context, truncate = self.served.context, self.request.truncate_prompt_tokens
        limit = min(context or MAX_PROMPT_TOKENS, MAX_PROMPT_TOKENS)
        if truncate is not None:
            length = limit if truncate == -1 else min(limit, truncate)
            self.num_cut_tokens += max(0, len(tokens) - length)
            return tokens[len(tokens) - length :] if length < len(tokens) else tokens
        if len(tokens) > limit:
            is_context = context == limit
            bound = f"the context of {self.served.name} has {limit:,}" if is_context else f"at most {limit:,} are read"
            message = (
                f"a prompt has {len(tokens):,} tokens; {bound}. Shorten it, or have it cut to its last tokens: "
                "truncate_prompt_tokens = -1"
            )
            raise ApiError(400, message, param, "context_length_exceeded")
        return tokens

    def _store_texts(self) -> None:
        """Store the prompts for a translator or classifier; refuse options these do not have, such as sampling."""
        served, request = self.served, self.request
        if served.answer_kind == "vectors":
            message = f"{served.name} makes vectors of texts and writes none: POST /v1/embeddings"
            raise ApiError(400, message, "model")
        for name in type(request).model_fields.keys() - ANSWER_FIELDS:
            if getattr(request, name) not in (None, *NO_SAMPLING.get(name, ())):
                kind = served.answer_kind
                message = f"{name}: {served.name} gives the {kind} of a text and does not sample. Leave it out."
                raise ApiError(400, message, name)
        texts = [request.messages[-1].text] if isinstance(request, ChatRequest) else request.prompts
        if any(not isinstance(text, str) for text in texts):
            message = f"prompt: {served.name} reads texts, not tokens. Give a text or a list of texts."
            raise ApiError(400, message, "prompt")
        has_limit = any(getattr(request, name) for name in request.token_fields)
        self.max_tokens = request.resolve_max_tokens(served.limits.tokens) if has_limit else served.limits.tokens
        self.prompts = [str(text) for text in texts]
        self.prompt_tokens = sum(len(served.run.tokenizer.encode_lossy(text)[0]) for text in self.prompts)
        if self.prompt_tokens > MAX_PROMPT_TOKENS:
            message = f"the texts have {self.prompt_tokens:,} tokens; at most {MAX_PROMPT_TOKENS:,} are read at once."
            raise ApiError(400, message, None, "context_length_exceeded")

    # In the run's thread.

    def _add_to_engine(self) -> list[TextPiece]:
        """Queue the prompts in the engine; return them as pieces if the client asked for an echo, otherwise []."""
        engine = self.served.thread.require_engine()
        if self in self.served.jobs:  # its client has not left meanwhile
            self.is_in_engine = True
            for request in self._requests:
                engine.add(request)
        if not self.request.echo or self.request.num_top_logprobs is not None:
            return []
        return [TextPiece(row, self.prompts[row // self.request.num_choices]) for row in range(self.rows)]

    def _answer_texts(self) -> AnswerItems:
        """Return the translation or class of each prompt: its text in pieces, and its end."""
        items: AnswerItems = []
        if self not in self.served.jobs:  # its client has left meanwhile
            return items
        for row, result in enumerate(self.served.answer(self.prompts, self.max_tokens)):
            if self.request.echo:
                items.append(TextPiece(row, self.prompts[row]))
            extra: dict[str, Any] = {"remark": result.note} if result.note else {}
            if isinstance(result, Classification):
                extra = {"chances": result.probabilities, **extra}
                items += [TextPiece(row, result.label), FinishedText(row, "stop", 0, extra)]
            else:
                reason = "stop" if result.finished else "length"
                items += [TextPiece(row, result.text), FinishedText(row, reason, len(result.tokens), extra)]
        return items

    # In the event loop.

    def receive(self, events: Sequence[TextEvent | Exception]) -> None:
        """Queue the engine's events, converted to pieces and ends of texts, or its error, for `items`."""
        served, num_choices = self.served, self.request.num_choices
        if not self.first_event_at:
            self.first_event_at = time.monotonic()
            seconds = self.first_event_at - self.started
            served.metrics.observe("lemma_first_token_seconds", seconds, model=served.name)
        items: list[TextPiece | FinishedText | Exception] = []
        for event in events:
            if isinstance(event, Exception):
                items.append(event)
                continue
            if event.error:
                items.append(event.error)
                continue
            row = event.request.first_row + event.index
            if event.prompt_logprobs is not None:  # the same for all texts of a prompt
                prompt = self.prompts[row // num_choices]
                items += [TextPiece(other, prompt, event.prompt_logprobs) for other in range(row, row + num_choices)]
            if event.text or event.logprobs:
                items.append(TextPiece(row, event.text, event.logprobs))
            if result := event.result:
                loop = result.loop
                extra = {"loop": {**loop.to_dict(), "remark": f"loop: {loop}"}} if loop else {}
                reason = "length" if result.stopped == "length" else "stop"
                items.append(FinishedText(row, reason, len(result.tokens), extra))
                served.metrics.count("lemma_generated_tokens_total", len(result.tokens), model=served.name)
                if event.index == 0:
                    served.metrics.count("lemma_prompt_tokens_total", len(event.request.prompt), model=served.name)
        self._queue.put_nowait(items)

    def first_token(self, row: int) -> tuple[int, str]:
        """Return the first token of the prompt of text `row`, and the token's text."""
        [token] = self._requests[row // self.request.num_choices].prompt[:1]
        return token, self.served.run.tokenizer.decode([token])

    def decode_partial(self, tokens: list[int], is_start: bool) -> str:
        """Return the text of tokens that are parts of characters; "" for an incomplete one at a text's start."""
        text = self.served.run.tokenizer.decode(tokens)
        return "" if is_start and len(text) <= 3 and not text.strip(INCOMPLETE) else text


def encode_prompt(served: ServedRun, prompt: str | list[int], param: str) -> list[int]:
    """Return a prompt as token ids; raise an error that names the field `param` for ids that the run does not have."""
    tokenizer = served.run.tokenizer
    if isinstance(prompt, str):
        try:
            return tokenizer.encode(prompt).tolist()
        except InputError as error:
            raise ApiError(400, f"{param}: {error}", param) from None
    unknown = next((token for token in prompt if token >= tokenizer.vocabulary), None)
    if unknown is not None:
        message = f"{param}: token {unknown} is not one of 0 to {tokenizer.vocabulary - 1}, those of {served.name}."
        raise ApiError(400, message, param)
    return prompt


@dataclass(eq=False)
class EmbeddingJob:
    """A request for embeddings that waits for its turn; `prompt_tokens` is an upper bound: tokens or characters."""

    prompt_tokens: int
    is_in_engine: ClassVar = False


async def embed_texts(served: ServedRun, request: EmbeddingRequest) -> dict[str, Any]:
    """Return the response body with the embeddings of a request's texts, in the format of OpenAI's API."""
    if served.answer_kind != "vectors":
        message = f"{served.name} makes no vectors of texts. Serve a run of an encoder or a dual encoder."
        raise ApiError(400, message, "model")
    served.admit(job := EmbeddingJob(sum(map(len, request.inputs))))
    try:
        served.check_waiting_tokens(job)
        work = partial(served.embed, request.inputs)
        vectors, tokens = await asyncio.wrap_future(served.thread.submit(work))
    except Exception as error:
        raise served.error_if_gone(error) from error
    finally:
        served.jobs.discard(job)
    encoded: list[Any] = vectors
    if request.encoding_format == "base64":
        encoded = [b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() for vector in vectors]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(encoded)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": served.name, "usage": usage}
