"""Several users of one loaded model at once: streams, threads, evaluation and training do not disturb each other."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lemma
from lemma.adaptation.adapt import adapt_model, copy_merged
from lemma.generation.cuda_graphs import without_cudnn_attention
from lemma.kernels import cuda_graphs
from lemma.layers.positions import RotaryEmbedding
from lemma.layers.recording import record_attention
from lemma.models.base import evaluating
from lemma.runs.load import Run
from lemma.spec.recipe import AdaptationSpec, Adapters, Lora, Method
from served_runs import untrained

WRITING: dict[str, Any] = {"tokens": 30, "temperature": 0.9, "seed": 3}


def adapted(folder: Path, kind: str, method: Method) -> Run:
    """Return an adapted run whose updates or adapters change its output."""
    run = lemma.load(untrained(folder, kind))
    torch.manual_seed(1)
    model = adapt_model(run.module, method).model
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    return replace(run, module=model, adaptation=AdaptationSpec(method=method, base="base", base_hash="0"))


def lora_run(folder: Path, kind: str = "decoder") -> Run:
    return adapted(folder, kind, Lora(rank=2))


def stream(run: Run, prompt: str) -> Any:
    return lemma.generate(run, prompt, stream=True, **WRITING)


def state_of(run: Run) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in run.module.state_dict().items()}


@pytest.mark.parametrize("method", [Lora(rank=2), Adapters(bottleneck=3)], ids=lambda method: method.kind)
@pytest.mark.parametrize("kind", ["decoder", "bytes", "trigram"])
def test_concurrent_streams_of_an_adapted_run_are_independent(tmp_path: Path, kind: str, method: Method) -> None:
    run = adapted(tmp_path, kind, method)
    base = lemma.generate(lemma.load(run.path), "the", **WRITING).text
    single = ["".join(stream(run, prompt)) for prompt in ("the", "a cat")]
    assert single[0] != base
    first, second = (stream(run, prompt) for prompt in ("the", "a cat"))
    text = ["", ""]
    for _ in range(3):
        text[0] += next(first)
        text[1] += next(second)
    text[0] += "".join(first)  # and so it is exhausted
    text[1] += "".join(second)
    assert text == single
    assert lemma.generate(run, "the", **WRITING).text == single[0]


def test_generation_does_not_modify_the_run(tmp_path: Path) -> None:
    run = lora_run(tmp_path)
    before, parts = state_of(run), [*run.module.modules()]
    pieces = stream(run, "the")
    next(pieces)
    assert [*run.module.modules()] == parts and [*state_of(run)] == [*before]
    for name, tensor in state_of(run).items():
        assert torch.equal(tensor, before[name])


def test_evaluation_during_an_open_stream_scores_the_adapted_run(tmp_path: Path) -> None:
    run = lora_run(tmp_path)
    (tmp_path / "text.txt").write_text("the cat sat on the mat, and the dog?\n" * 20, encoding="utf-8")
    single = lemma.evaluate(run, text=tmp_path / "text.txt", progress=False).to_dict()
    full, pieces = lemma.generate(run, "the", **WRITING).text, stream(run, "the")
    text = next(pieces)
    meanwhile = lemma.evaluate(run, text=tmp_path / "text.txt", progress=False).to_dict()
    assert meanwhile["perplexity"] == single["perplexity"] and text + "".join(pieces) == full


def test_training_between_calls_affects_later_calls_only(tmp_path: Path) -> None:
    run = lora_run(tmp_path)
    full = lemma.generate(run, "the", **WRITING).text
    pieces = stream(run, "the")
    text = next(pieces)
    with torch.no_grad():
        for parameter in run.module.parameters():
            if parameter.requires_grad:
                parameter.mul_(-1.5)
    expected = run.model(torch.tensor([[1, 2, 3]]))[0]
    torch.testing.assert_close(run.merge_lora().model(torch.tensor([[1, 2, 3]]))[0], expected, rtol=1e-4, atol=1e-4)
    assert lemma.generate(run, "the", **WRITING).text != full
    assert text + "".join(pieces) == full
    run.model(torch.tensor([[1, 2, 3]]))[0].sum().backward()  # the adapted model is still trainable


def test_concurrent_generation_equals_sequential_generation(tmp_path: Path) -> None:
    run, prompts = lora_run(tmp_path), ["the", "a", "dog", "cat", "mat", "end"]
    single = [lemma.generate(run, prompt, **WRITING).text for prompt in prompts]
    run = lora_run(tmp_path / "again")
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda prompt: lemma.generate(run, prompt, **WRITING).text, prompts)) == single


def test_merged_copy_is_cached_and_shares_unadapted_weights(tmp_path: Path) -> None:
    run = lora_run(tmp_path)
    with torch.inference_mode():
        copy = copy_merged(run.module)
    assert copy_merged(run.module) is copy and run.merge_lora().module is copy
    assert copy.embedding.weight is run.module.embedding.weight  # pyright: ignore
    assert not any(parameter.is_inference() for parameter in copy.parameters())
    run.module.to(torch.float64)
    assert next(copy_merged(run.module).parameters()).dtype == torch.float64


def test_hooks_of_an_adapted_model_are_called(tmp_path: Path) -> None:
    run, calls = lora_run(tmp_path), list[int]()
    text = lemma.generate(run, "the", **WRITING).text
    run.module.layers[0].register_forward_hook(lambda *_: calls.append(1))  # pyright: ignore
    assert lemma.generate(run, "the", **WRITING).text == text and calls


def test_evaluation_contexts_may_exit_in_any_order() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2)).train()
    model[1].eval()
    first, second = evaluating(model), evaluating(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(part.training for part in model.modules())
    second.__exit__(None, None, None)
    assert [part.training for part in model.modules()] == [True, True, False]


def test_concurrent_recording_keeps_attention_paths_correct(tmp_path: Path) -> None:
    model: Any = lemma.load(untrained(tmp_path, "decoder")).module
    entered, leave = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: model.norm(torch.zeros(1, 1, 16)), daemon=True)

    def stay(*_: Any) -> None:
        if threading.current_thread() is other:
            entered.set()
            leave.wait(10)

    def start_other(*_: Any) -> None:
        other.start()
        entered.wait(10)

    with torch.no_grad(), record_attention(model) as records:
        model.norm.register_forward_pre_hook(stay)
        model.layers[0].attention.register_forward_pre_hook(start_other)
        model(torch.tensor([[1, 2, 3]]))
        leave.set()
        other.join()
    assert [record.name for record in records] == ["layers.0.attention"]


def test_rotary_table_grown_by_another_thread_stays_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    part, rows = RotaryEmbedding(8, 4), RotaryEmbedding._compute_rows

    def rows_after_another(one: RotaryEmbedding, start: int, stop: int, *others: Any) -> torch.Tensor:
        monkeypatch.setattr(RotaryEmbedding, "_compute_rows", rows)
        thread = threading.Thread(target=one.ensure_length, args=(4 * stop,))
        thread.start()
        thread.join(0.2)
        return rows(one, start, stop, *others)

    monkeypatch.setattr(RotaryEmbedding, "_compute_rows", rows_after_another)
    part.ensure_length(100)
    monkeypatch.undo()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(5)
    assert len(part.table) == 400


def test_cuda_graph_captures_are_serialized_across_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    open_captures, modes = list[str](), list[tuple[int, str]]()

    @contextmanager
    def graph(_: object, *, capture_error_mode: str = "global") -> Iterator[None]:
        open_captures.append(capture_error_mode)
        time.sleep(0.02)
        modes.append((len(open_captures), capture_error_mode))
        yield
        open_captures.pop()

    def record(_: int) -> None:
        with cuda_graphs.capture(object()):  # pyright: ignore[reportArgumentType]
            time.sleep(0.01)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(record, range(4)))
    assert modes == [(1, "thread_local")] * 4
    sources = Path(lemma.__file__).parent.rglob("*.py")
    capturing = [path.name for path in sources if "torch.cuda.graph(" in path.read_text(encoding="utf-8")]
    assert capturing == ["cuda_graphs.py"]


def test_cudnn_attention_is_restored_after_the_last_thread() -> None:
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    before = enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        first, second = without_cudnn_attention(), without_cudnn_attention()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not enabled()
        second.__exit__(None, None, None)
        assert enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_updates_changed_through_data_are_merged_again(tmp_path: Path) -> None:
    """Fused optimizers and writes through `.data` do not raise the version counter."""
    run = lora_run(tmp_path)
    before = copy_merged(run.module)
    assert copy_merged(run.module) is before
    for name, parameter in run.module.named_parameters():
        if "update" in name:
            parameter.data.mul_(2)
    assert copy_merged(run.module) is not before
