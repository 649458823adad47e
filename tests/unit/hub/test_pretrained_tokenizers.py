"""Tokenizers of pretrained models against transformers: ids, texts, conversations."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers as library

import lemma
from lemma.data.chat import render_chat
from lemma.data.store import encode_texts, fit_rows, read_tokens
from lemma.data.tokenizers import Tokenizer
from lemma.errors import DataError
from lemma.generation.sequences import Detokenizer, strip_partial_character
from lemma.hub.huggingface import open_folder
from pretrained_models import CHAT, TEXT, byte_level, llama, pieces, wordpiece

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
LINES = ("the cat", " the cat ", "naïve ünï 🎉 mat", "a\n\n  b\tc", "<|im_end|> </s>", "12345!", "")
ENGINES = {
    "byte-level": byte_level,
    "with begin": lambda: byte_level(starts_text=True),
    "pieces": pieces,
    "wordpiece": wordpiece,
}


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> library.Tokenizer:
    return ENGINES[request.param]()


def test_token_ids_and_texts_match_transformers(engine: library.Tokenizer) -> None:
    ours, reference = Tokenizer(engine.to_str()), transformers.PreTrainedTokenizerFast(tokenizer_object=engine)
    assert ours.kind == "pretrained" and ours.vocabulary == len(reference)
    for line in LINES:
        ids = reference(line)["input_ids"]
        assert ours.encode(line).tolist() == ids
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        assert ours.encode_lossy(line)[0].tolist() == reference(line, add_special_tokens=False)["input_ids"]


def _saved(folder: Path, engine: library.Tokenizer, **settings: Any) -> Path:
    """Write a BERT folder with tokenizer.json and, for settings, tokenizer_config.json."""
    folder.mkdir(exist_ok=True)
    engine.save(str(folder / "tokenizer.json"))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": engine.get_vocab_size()}))
    return folder


AROUND: dict[str, dict[str, Any]] = {
    "nothing is said": {},
    "a class of BERT": {"tokenizer_class": "BertTokenizer", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    "no class": {"tokenizer_class": "PreTrainedTokenizerFast", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    "begin": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "[CLS]", "add_bos_token": True},
    "end": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]", "add_eos_token": True},
    "neither": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "[CLS]", "add_bos_token": False},
}


@pytest.mark.parametrize("pipeline", ["template", "none"])
@pytest.mark.parametrize("said", AROUND)
def test_added_special_tokens_match_transformers(said: str, pipeline: str, tmp_path: Path) -> None:
    engine = wordpiece()
    if pipeline == "none":
        plan = {**json.loads(engine.to_str()), "post_processor": None}
        engine = library.Tokenizer.from_str(json.dumps(plan))
    folder = _saved(tmp_path, engine, **AROUND[said])
    ours, reference = open_folder(folder).tokenizer, transformers.AutoTokenizer.from_pretrained(folder)
    for line in LINES:
        assert ours.encode(line).tolist() == reference(line)["input_ids"]
    rows = fit_rows(encode_texts(ours, LINES[:1], lambda size: None)[0], ours, 99, special_tokens=True)
    assert rows.tokens.tolist() == reference(LINES[0])["input_ids"]  # as for a classifier


@pytest.mark.parametrize("name", ["byte-level", "with begin", "pieces"])
def test_incremental_detokenization_equals_full_decoding(name: str) -> None:
    ours = Tokenizer(ENGINES[name]().to_str())
    for line in LINES[:4]:
        ids = ours.encode(line).tolist()
        for cut in range(1, len(ids)):
            spelling = Detokenizer(ours, ids[:cut])
            messages = "".join(map(spelling.add, ids[cut:])) + spelling.flush()
            last = ours.decode(ids[cut - 1 : cut])
            assert messages == strip_partial_character(
                ours, ours.decode(ids[cut - 1 :])[len(last) :]
            )  # without partial characters
            assert "\ufffd" not in messages or "\ufffd" in ours.decode(ids[cut - 1 :])


def test_token_strings_show_special_tokens_and_spaces() -> None:
    ours = Tokenizer(byte_level(starts_text=True).to_str())
    assert "".join(ours.token_strings(ours.encode("the cat sat"))) == "<|endoftext|>the cat sat"
    spaced = Tokenizer(pieces().to_str())
    assert "".join(spaced.token_strings(spaced.encode("the cat sat"))) == "<s>the cat sat"


@pytest.mark.parametrize("name", ["byte-level", "pieces", "wordpiece"])
def test_chunked_tokenization_equals_full_tokenization(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("lemma.data.text.BLOCK", 100)
    ours = Tokenizer(ENGINES[name]().to_str())
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    result = np.asarray(read_tokens([str(tmp_path / "text.txt")], ours).item("text"))
    start = () if ours.suffix else ours.prefix  # an encoder adds special tokens to each window
    assert result.tolist() == [*start, *ours.encode_lossy(TEXT)[0].tolist()]


def test_padded_vocabulary_size_comes_from_the_model(tmp_path: Path) -> None:
    llama(tmp_path, vocab_size=320)
    run = lemma.load(tmp_path, device="cpu")
    assert run.tokenizer.vocabulary == run.spec.vocabulary == 320  # pyright: ignore
    assert run.tokenizer.decode([319, run.tokenizer.encode("a")[0]]) == "a"  # 319 is not a token


def test_stop_tokens_and_sampling_come_from_generation_config(tmp_path: Path) -> None:
    llama(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0, 99999], "temperature": 0.6, "top_k": 7}')
    tokenizer = lemma.load(tmp_path).tokenizer
    assert tokenizer.eos == 2 and tokenizer.bos == 1 and tokenizer.stop_tokens == {0, 2}
    assert tokenizer.sampling == {"temperature": 0.6, "top_k": 7, "stop_tokens": (0,)}
    (tmp_path / "generation_config.json").write_text('{"do_sample": false}')
    assert lemma.load(tmp_path).tokenizer.sampling == {"temperature": 0.0}


def test_chat_template_and_stop_tokens_are_saved_with_the_tokenizer(tmp_path: Path) -> None:
    llama(tmp_path / "model")
    tokenizer = lemma.load(tmp_path / "model").tokenizer
    (tmp_path / "saved").mkdir()
    tokenizer.save(tmp_path / "saved" / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "saved" / "tokenizer.json")
    messages = [{"role": "user", "content": "hi"}]
    assert again.chat(messages) == tokenizer.chat(messages) and again.stop_tokens == tokenizer.stop_tokens


# Conversations


TEMPLATES = {
    "chatml": CHAT,
    "loops": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}\n {{ m.role }}{% endfor %}",
    "json": "{{ bos_token }}{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}",
}
TALK = [
    {"role": "system", "content": "Be <b>brief</b>."},
    {"role": "user", "content": " Why 'ü'? "},
    {"role": "assistant", "content": "Because.\n"},
]


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_chat_rendering_matches_transformers(name: str) -> None:
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<|im_start|>")
    reference.chat_template = TEMPLATES[name]
    for answering in (True, False):
        expected = reference.apply_chat_template(TALK, tokenize=False, add_generation_prompt=answering)
        text = render_chat(TEMPLATES[name], TALK, {"bos_token": "<|im_start|>"}, add_generation_prompt=answering)
        assert text == expected


def test_chat_template_cannot_escape_its_sandbox() -> None:
    for evil in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% include '/etc/passwd' %}"):
        try:
            text = render_chat(evil, TALK, {})
        except DataError:
            continue
        assert text == ""


def test_template_errors_and_missing_templates_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Only users may speak"):
        render_chat("{{ raise_exception('Only users may speak') }}", TALK, {})
    with pytest.raises(DataError, match="a role and a content are expected"):
        render_chat(CHAT, [{"role": "user"}], {})
    with pytest.raises(DataError, match="has no chat template"):
        Tokenizer(byte_level().to_str()).chat(TALK)


def test_chat_adds_no_tokens_to_the_template(tmp_path: Path) -> None:
    llama(tmp_path, tokenizer=pieces())
    run = lemma.load(tmp_path)
    talk = [{"role": "user", "content": "the cat"}]
    assert run.tokenizer.prefix == (1,)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert run.chat(talk) == reference.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    answer = lemma.generate(run, chat=talk, tokens=3, temperature=0.0)
    assert answer.prompt == run.tokenizer.chat(talk)
