"""Hugging Face folders as runs: equal logits, clear errors, no tensor twice in memory."""

import json
import math
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import processors

import lemma
from lemma.errors import InputError, RunError
from lemma.hub.architectures import spec_from_config
from lemma.report.progress import SilentObserver
from lemma.runs.folder import PretrainedRun, RunFolder, is_run
from lemma.spec.models import Decoder
from lemma.tasks.registry import CLASSIFICATION, DataArgs
from lemma.training.adapt import plan_adaptation
from pretrained_models import TEXT, llama, pieces, wordpiece

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = torch.arange(20)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    llama(path)
    return path


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def logits(path: Path | str) -> torch.Tensor:
    return lemma.load(path, device="cpu").model(TOKENS)[0]


def test_pretrained_folder_has_the_logits_of_transformers(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder)
    run = lemma.load(folder, device="cpu")
    assert isinstance(run.spec, Decoder) and is_run(folder)
    torch.testing.assert_close(run.model(TOKENS)[0], reference(TOKENS).logits, rtol=0, atol=1e-5)
    assert not any(parameter.is_meta for parameter in run.module.parameters())


def test_sharded_weights_equal_single_file(folder: Path, tmp_path: Path) -> None:
    llama(tmp_path / "shards", shard="20KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert torch.equal(logits(tmp_path / "shards"), logits(folder))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_weights_load_exactly_as_float32(dtype: str, tmp_path: Path) -> None:
    reference = llama(tmp_path, dtype=dtype).float()
    run = lemma.load(tmp_path, device="cpu")
    assert {parameter.dtype for parameter in run.module.parameters()} == {torch.float32}
    torch.testing.assert_close(run.model(TOKENS)[0], reference(TOKENS).logits, rtol=0, atol=1e-5)


def test_tied_matrices_stay_tied(tmp_path: Path) -> None:
    llama(tmp_path, tie_word_embeddings=True)
    model = lemma.load(tmp_path, device="cpu").module
    assert model.get_parameter("output.weight") is model.get_parameter("embedding.weight")


@pytest.mark.parametrize("former", [None, "gelu", "swiglu"])
def test_gemma_activation_comes_from_its_newer_option(former: str | None) -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
    config = {"model_type": "gemma", **sizes, "intermediate_size": 8, "max_position_embeddings": 9}
    spec = spec_from_config({**config, "hidden_act": former, "hidden_activation": "relu"})
    assert isinstance(spec, Decoder) and spec.activation == "relu"


def test_config_alone_can_be_counted_but_not_loaded(folder: Path, tmp_path: Path) -> None:
    single = shutil.copy(folder / "config.json", tmp_path)
    account = lemma.count(str(single), quantities=["parameters"])
    expected = sum(parameter.numel() for parameter in lemma.load(folder, device="cpu").module.parameters())
    assert account.parameters.total == expected
    assert account.parameters.total == lemma.count(folder, quantities=["parameters"]).parameters.total
    with pytest.raises(RunError, match=r"has no weights: neither model\.safetensors nor"):
        lemma.load(tmp_path / "config.json")


def test_formula_is_checked_against_a_pretrained_folder(folder: Path) -> None:
    right = "2*V*d + d + L*(2*d + d*d_h + d*d_h + 2*d*d_h*h_kv/h + 3*d*d_ff)"
    assert lemma.check.parameters(folder, right).equal
    assert not lemma.check.parameters(folder, right.replace("3*d*d_ff", "2*d*d_ff")).equal


def test_evaluating_pretrained_model_requires_a_text(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pretrained model, whose own data are not known.*--text"):
        lemma.evaluate(folder)
    text = tmp_path / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    score = lemma.evaluate(folder, text=text, progress=False)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")["input_ids"]
    loss = AutoModelForCausalLM.from_pretrained(folder)(ids[:, :64], labels=ids[:, :64]).loss.item()
    first = lemma.evaluate(folder, text=text, progress=False, context=64, stride=64)
    assert score.tokens == ids.shape[1] - 1 == first.tokens
    assert abs(first.loss - loss) < 0.5  # the same model on the first window alone


# Folders that cannot be loaded raise one sentence that names the file.


def load_error(path: Path) -> str:
    with pytest.raises(RunError) as caught:
        lemma.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    llama(tmp_path, shard="20KB")
    lost = sorted(tmp_path.glob("model-*.safetensors"))[1]
    lost.unlink()
    assert lost.name in load_error(tmp_path) and "is missing" in load_error(tmp_path)


def test_truncated_weights_are_named(copied: Path) -> None:
    full = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(full[: len(full) // 2])
    assert "model.safetensors is damaged or cut off" in load_error(copied)


def changed(folder: Path, **words: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **words}))
    return folder


def test_shapes_contradicting_the_config_are_rejected(copied: Path) -> None:
    assert "mlp.gate_proj.weight has the shape 40 × 24, expected 44 × 24" in load_error(
        changed(copied, intermediate_size=44)
    )


def test_unknown_architecture_is_rejected_with_supported_ones(copied: Path) -> None:
    output = load_error(changed(copied, model_type="mamba"))
    assert "'mamba'" in output and "Llama" in output and "Qwen3" in output


def test_remote_code_is_never_executed(copied: Path) -> None:
    output = load_error(changed(copied, auto_map={"AutoModelForCausalLM": "modeling.Evil"}))
    assert "auto_map" in output and "never" in output


def follow(advice: str) -> None:
    """Run the command at the end of an error message in this process."""
    program, option, code = shlex.split(advice[advice.index("python -c") :])
    assert (program, option) == ("python", "-c")
    exec(code, {})


def test_pickle_is_rejected_with_a_working_conversion_command(copied: Path) -> None:
    full = lemma.load(copied).module.state_dict()
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    output = load_error(copied)
    assert "pytorch_model.bin is a pickle" in output and "LlamaForCausalLM" in output
    follow(output)
    torch.testing.assert_close(lemma.load(copied).module.state_dict(), full)
    (copied / "model.safetensors").rename(copied / "consolidated.00.pth")
    (copied / "pytorch_model.bin").unlink()
    assert load_error(copied).endswith("Download the model's model.safetensors.")  # transformers cannot read it, either


def test_missing_tokenizer_error_advises_by_available_files(copied: Path) -> None:
    (copied / "tokenizer.json").unlink()
    (copied / "vocab.json").write_text("{}")  # a tokenizer also needs the merges
    output = load_error(copied)
    assert "has no tokenizer: neither tokenizer.json nor" in output and "python -c" not in output
    (copied / "spiece.model").write_bytes(b"")
    assert "pip install transformers sentencepiece protobuf" in load_error(copied)


def test_advised_command_converts_an_old_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "it's old"
    llama(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    follow(load_error(folder))
    assert lemma.load(folder).tokenizer.decode(lemma.load(folder).tokenizer.encode("the cat")) == "the cat"


def test_shard_index_cannot_escape_the_folder(tmp_path: Path) -> None:
    llama(tmp_path, shard="20KB")
    index = tmp_path / "model.safetensors.index.json"
    plan = json.loads(index.read_text())
    plan["weight_map"] = {name: f"../{shard}" for name, shard in plan["weight_map"].items()}
    index.write_text(json.dumps(plan))
    assert "does not name files of this folder" in load_error(tmp_path)


def test_peft_folder_is_rejected_with_the_adapt_command(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "lemma adapt BASE --from-peft" in load_error(tmp_path)


# Adapted runs refer to their base.


def test_adapted_run_loads_its_base_and_detects_changes(copied: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 5, encoding="utf-8")
    settings = {"steps": 2, "batch": 2, "sequence_length": 16, "rank": 2, "device": "cpu"}
    lemma.adapt(copied, text=text, out=tmp_path / "adapted", progress=False, **settings)
    run = lemma.load(tmp_path / "adapted", device="cpu")
    assert run.tokenizer.kind == "pretrained" and run.adaptation is not None
    assert run.adaptation.base_hash == RunFolder.open(copied).source.hash  # pyright: ignore
    assert run.chat([{"role": "user", "content": "hi"}]) == lemma.load(copied).chat([{"role": "user", "content": "hi"}])
    lemma.export(tmp_path / "adapted", to="merged", out=tmp_path / "plain")
    base = lemma.load(tmp_path / "plain", device="cpu")
    torch.testing.assert_close(base.model(TOKENS)[0], run.model(TOKENS)[0], rtol=0, atol=1e-5)
    assert base.tokenizer.stop_tokens == run.tokenizer.stop_tokens and base.chat([{"role": "user", "content": "hi"}])
    changed(copied, rope_theta=5.0)
    with pytest.raises(RunError, match="was adapted from weights and a tokenizer"):
        lemma.load(tmp_path / "adapted")


def test_pretrained_folder_is_adapted_to_a_classifier(folder: Path, tmp_path: Path) -> None:
    rows = [f"the cat sat {word},{label}" for word in ("well", "there") for label in "ab" for _ in range(20)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(f"{number} {row}" for number, row in enumerate(rows)))
    settings: dict[str, Any] = {"labels": tmp_path / "rows.csv", "progress": False, "device": "cpu"}
    plan = plan_adaptation(folder, DataArgs(CLASSIFICATION, str(settings["labels"]), {}), "lora", {}, SilentObserver())
    recipe = plan.recipe  # 64 training texts, twice, would be fewer steps
    assert (recipe.batch, recipe.sequence_length, recipe.steps, recipe.evaluate_every) == (8, 64, 60, 20)
    lemma.adapt(folder, out=tmp_path / "out", steps=2, sequence_length=4, **settings)
    generations = lemma.generate(tmp_path / "out", source=["the cat", "the cat sat on the mat"])
    assert [item.label in ("a", "b") for item in generations] == [True, True]
    assert not generations[0].note and "only the first 4 of" in generations[1].note
    assert lemma.evaluate(tmp_path / "out", progress=False).texts == 8
    heads = lemma.look(tmp_path / "out", text="the cat sat").heads
    assert len(heads) == 8 and heads[0].weights.shape[-1] == len(lemma.load(folder).tokenizer.encode("the cat sat"))


def test_opening_does_not_read_weights(copied: Path) -> None:
    (copied / "model.safetensors").write_bytes(b"")
    opened = RunFolder.open(copied)
    assert isinstance(opened, PretrainedRun) and opened.is_finished and opened.summary() is None


MEMORY = """
import resource, sys
import lemma.runs.load
from lemma.runs.folder import RunFolder
from pathlib import Path
folder = RunFolder.open(Path(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = folder.source.model()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("kind", ["bfloat16", "gguf"])
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is counted otherwise")
def test_loading_memory_is_close_to_weight_size(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "folder"
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "vocab_size": 20_000}
    llama(path, dtype="bfloat16", tie_word_embeddings=True, **sizes)
    if kind == "gguf":
        pytest.importorskip("gguf")
        path = Path(lemma.export(path, to="gguf", out=tmp_path / "model.gguf").path)
    weights = sum(parameter.numel() for parameter in lemma.load(path, device="cpu").module.parameters()) * 4
    command = [sys.executable, "-c", MEMORY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert weights > 80e6  # half of its bytes are one matrix
    assert int(done.stdout) <= 1.2 * weights, int(done.stdout) / weights


# Encoders


def bert(folder: Path) -> Any:
    """Write a BERT folder whose tokenizer has other ids of special tokens than Google's; return the model."""
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    engine = wordpiece()
    sizes: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(
        **sizes, vocab_size=engine.get_vocab_size(), intermediate_size=40, max_position_embeddings=40, pad_token_id=0
    )
    torch.manual_seed(2)
    model = BertForMaskedLM(config).eval()
    model.save_pretrained(folder)
    special = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=engine, **special).save_pretrained(folder)
    return model


def test_bert_is_evaluated_with_its_mask_token_and_adapted(tmp_path: Path) -> None:
    reference = bert(tmp_path / "bert")
    run = lemma.load(tmp_path / "bert", device="cpu")
    assert run.spec.special_tokens == (1, 2, 3)  # pyright: ignore
    tokens = torch.tensor([[1, 9, 3, 20, 2]])
    torch.testing.assert_close(run.module(tokens), reference(tokens).logits, rtol=0, atol=1e-5)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    score = lemma.evaluate(run, text=tmp_path / "text.txt", progress=False)
    assert abs(score.loss - math.log(run.spec.vocabulary)) < 0.2  # an untrained model predicts at chance
    rows = "".join(f"the cat sat {number},{'ab'[number % 2]}\n" for number in range(40))
    (tmp_path / "rows.csv").write_text(f"text,label\n{rows}")
    quick: dict[str, Any] = {"steps": 2, "device": "cpu", "progress": False}
    lemma.adapt(tmp_path / "bert", labels=tmp_path / "rows.csv", out=tmp_path / "out", **quick)
    assert lemma.generate(tmp_path / "out", source="the cat").label in ("a", "b")
    assert str(lemma.look(tmp_path / "bert", text="the cat sat").tokens[0].text) == "[CLS]"


def test_t5_output_matches_transformers(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    engine = pieces()
    end = [("</s>", 2)]
    engine.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=end)
    sizes: dict[str, Any] = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4}
    ids = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(4)
    model = T5ForConditionalGeneration(T5Config(**sizes, vocab_size=engine.get_vocab_size(), **ids)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    fast = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="</s>", pad_token="<unk>")
    fast.save_pretrained(tmp_path)
    source = fast("the cat sat", return_tensors="pt")["input_ids"]
    reference = model.generate(source, max_new_tokens=8, do_sample=False)[0, 1:].tolist()
    ours = lemma.generate(tmp_path, source="the cat sat", tokens=8)
    assert list(ours.tokens) == [token for token in reference if token != 2]
    (tmp_path / "pairs.tsv").write_text("source\ttarget\nthe cat\tthe mat\na time\ta café\n")
    assert lemma.evaluate(tmp_path, pairs=tmp_path / "pairs.tsv", beam=1, progress=False).sentences == 2


def test_served_model_uses_its_chat_template(folder: Path) -> None:
    from lemma.api import application

    testing = pytest.importorskip("fastapi.testclient", reason="needs FastAPI")
    client, run = testing.TestClient(application(folder, device="cpu")), lemma.load(folder, device="cpu")
    messages = [{"role": "user", "content": "the cat"}]
    request = {"messages": messages, "max_tokens": 3, "temperature": 0}
    answer = client.post("/v1/chat/completions", json=request).json()
    expected = lemma.generate(run, chat="the cat", tokens=3, temperature=0.0)
    assert answer["choices"][0]["message"]["content"] == expected.text
    assert answer["usage"]["prompt_tokens"] == len(run.chat(messages))
    [reported] = client.get("/v1/models").json()["data"]
    assert reported["created"] == 0 and reported["shows"] == ["generate", "look", "count"]
    samples = client.post(
        "/v1/completions", json={"prompt": "the", "max_tokens": 8, "seed": 3}
    ).json()  # as the template says
    custom = lemma.generate(run, "the", tokens=8, seed=3, defaults={"temperature": 1.0})
    assert samples["choices"][0]["text"] == custom.text
