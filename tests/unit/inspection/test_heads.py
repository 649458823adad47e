"""Heads of our models, of torch.nn and of Hugging Face, compared with reference attention."""

import csv
import io
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lemma.data.tokenizers import train_tokenizer
from lemma.errors import DataError, InputError
from lemma.inspection.drawing import COLOURS, encode_png, text_colour
from lemma.inspection.heads import Heads, look_at, look_at_run, repeated_tokens
from lemma.inspection.page import render_page
from lemma.layers.recording import record_attention
from lemma.models.build import build
from lemma.spec.data import Characters
from lemma.spec.models import Decoder, Lstm, TableA5

TEXT = "to be, or not to be"
IDS = torch.tensor([sorted(set(TEXT)).index(character) for character in TEXT])


def decoder(**words) -> nn.Module:
    model = build(Decoder(**{"V": 12, "d": 16, "L": 2, "h": 4, "T": 32, **words}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def make_run(model: nn.Module, text: str = TEXT) -> SimpleNamespace:
    tokenizer = train_tokenizer(Characters(), [text])
    return SimpleNamespace(model=model, tokenizer=tokenizer, spec=model.spec, path=Path("runs/small"))


def hugging_face(kind: str, **words):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(**words, attn_implementation="eager")
    model = getattr(transformers, f"{kind}Model")(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


SIZES = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0}
FAMILIES = {
    "GPT2": {"vocab_size": 12, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, **SPECIAL},
    "Llama": {**SIZES, "num_key_value_heads": 2, **SPECIAL},
    "Bert": SIZES,
    "GptOss": {**SIZES, "num_key_value_heads": 2, "head_dim": 4, "num_local_experts": 4, **SPECIAL},
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_attention_weights_match_transformers(kind: str) -> None:
    """Compare with `output_attentions`, which only the eager path of transformers returns."""
    model = hugging_face(kind, **FAMILIES[kind])
    with torch.no_grad():
        attentions = model(IDS[None], output_attentions=True).attentions
    result = look_at(model, IDS, list(TEXT))
    assert len(result.heads) == 8
    for head in result.heads:
        np.testing.assert_allclose(head.weights, attentions[head.layer][0, head.head].numpy(), atol=2e-6)
        assert head.allowed.all() == (kind == "Bert")


def test_attention_sink_fraction_is_reported() -> None:
    model = hugging_face("GptOss", **FAMILIES["GptOss"])
    with torch.no_grad():
        expected = model(IDS[None]).last_hidden_state
        with record_attention(model):
            seen_by_recorder = model(IDS[None]).last_hidden_state
    # Later layers have the same hidden states.
    torch.testing.assert_close(seen_by_recorder, expected, rtol=1e-4, atol=1e-5)
    result = look_at(model, IDS, list(TEXT))
    for head in result.heads:
        assert head.sink is not None and head.sink_fraction is not None
        np.testing.assert_allclose(head.weights.sum(1).mean(), 1 - head.sink_fraction, atol=1e-6)
        assert 0.001 < head.sink_fraction < 0.999
    assert "to sink" in str(result) and "attention sinks" in " ".join(result.notes)
    assert result.to_dict()["heads"][0]["sink"] == result.heads[0].sink_fraction
    assert "to the sink" in render_page(result)
    base = look_at(decoder(), IDS, list(TEXT))
    assert "sink" not in str(base) and base.to_dict()["heads"][0]["sink"] is None


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "rotary", "alibi"])
def test_score_parts_add_up_and_weights_reproduce_output(positions: str) -> None:
    result = look_at(decoder(positions=positions), IDS, list(TEXT))
    for head in result.heads:
        scores = head.scale * head.queries @ head.keys.T + (0.0 if head.bias is None else head.bias)
        scores = np.where(np.tri(len(TEXT), dtype=bool), scores, -np.inf)
        np.testing.assert_allclose(head.weights, torch.from_numpy(scores).softmax(-1).numpy(), atol=1e-6)
        assert (head.bias is not None) == (positions == "alibi")
        assert head.allowed.tolist() == np.tri(len(TEXT), dtype=bool).tolist()


def test_weighted_values_match_the_attention_output() -> None:
    model = decoder(L=1)
    returned: list[torch.Tensor] = []
    attention = model.get_submodule("layers.0.attention")
    hook = attention.get_submodule("output").register_forward_pre_hook(lambda _, settings: returned.append(settings[0]))
    result = look_at(model, IDS, list(TEXT))
    hook.remove()
    mixed = np.concatenate([head.weights @ head.values for head in result.heads if head.values is not None], axis=1)
    np.testing.assert_allclose(mixed, returned[0][0].detach().numpy(), atol=1e-6)


def test_cross_attention_labels_both_sequences() -> None:
    words = {"d_model": 16, "vocab_size": 12, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 40}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    model = hugging_face("Bart", **words, **heads)
    for length in (5, len(TEXT)):
        source = [f"s{index}" for index in range(length)]
        inputs = {"input_ids": IDS[None, :length], "decoder_input_ids": IDS[None]}
        result = look_at(model, inputs, list(TEXT), source_words=source)
        with torch.no_grad():
            settings = model(**inputs, output_attentions=True)
        encoder, itself, cross = (result.heads[index] for index in (0, 2, 4))
        assert [head.is_cross for head in (encoder, itself, cross)] == [False, False, True]
        assert [word.text for word in encoder.query_tokens] == [word.text for word in cross.key_tokens] == source
        assert [word.text for word in itself.key_tokens] == [word.text for word in cross.query_tokens] == list(TEXT)
        assert cross.statistics.distance is None
        np.testing.assert_allclose(cross.weights, settings.cross_attentions[0][0, 0].numpy(), atol=2e-6)
        assert "–" in str(result)


def test_padding_mask_leaves_cells_empty() -> None:
    model = hugging_face("Bert", **SIZES)
    mask = torch.ones(1, len(TEXT), dtype=torch.long)
    mask[:, -4:] = 0
    result = look_at(model, {"input_ids": IDS[None], "attention_mask": mask}, list(TEXT))
    assert all((head.allowed == (mask[0].numpy() == 1)).all() for head in result.heads)
    np.testing.assert_allclose([head.weights.sum() for head in result.heads], len(TEXT), rtol=1e-5)


def test_dtype_minimum_counts_as_a_mask() -> None:
    class Masked(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            settings = torch.randn(1, 2, tokens.shape[1], 4)
            bias = torch.zeros(settings.shape[-2], settings.shape[-2])
            bias[:, -1] = torch.finfo(bias.dtype).min
            return nn.functional.scaled_dot_product_attention(settings, settings, settings, bias)

    head = look_at(Masked(), IDS, list(TEXT)).heads[0]
    assert head.allowed[:, :-1].all() and not head.allowed[:, -1].any() and head.bias is None


def test_window_model_shows_its_last_window() -> None:
    result = look_at(build(TableA5(V=12, d=16, d_e=8, h=2, d_ff=8, N=5)), IDS, list(TEXT))
    assert [word.index for word in result.heads[0].key_tokens] == [15, 16, 17, 18]


def test_inspection_does_not_modify_the_model() -> None:
    model = decoder()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    look_at(model, IDS, list(TEXT))
    assert model.training and all(part.training for part in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_half_precision_is_computed_in_float32() -> None:
    result = look_at(decoder().to(torch.bfloat16), IDS, list(TEXT))
    assert result.heads[0].weights.dtype == np.float32
    np.testing.assert_allclose(result.heads[0].weights.sum(1), 1, atol=1e-6)


def test_selected_layer_or_head_matches_the_full_result() -> None:
    model = decoder()
    everything, subset = look_at(model, IDS, list(TEXT)), look_at(model, IDS, list(TEXT), layer=1, head=2)
    assert [(head.layer, head.head) for head in subset.heads] == [(1, 2)]
    np.testing.assert_array_equal(subset.heads[0].weights, everything.heads[6].weights)
    assert len(look_at(model, IDS, list(TEXT), head=3).heads) == 2
    assert "→" in str(subset) and "→" not in str(everything)


@pytest.mark.parametrize("wrong", [{"layer": 2}, {"layer": -1}, {"head": 4}, {"layer": 0, "head": -1}])
def test_unknown_layer_or_head_error_lists_available(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"layers 0 to 1|heads 0 to 3"):
        look_at(decoder(), IDS, list(TEXT), **wrong)


def test_word_count_must_match_token_count() -> None:
    with pytest.raises(InputError, match="19 tokens, but 3 words"):
        look_at(decoder(), IDS, ["a", "b", "c"])


def test_list_of_ids_equals_a_tensor() -> None:
    model = decoder()
    for ids in (IDS.tolist(), IDS.numpy(), IDS[None], [IDS.tolist()]):
        result = look_at(model, ids, list(TEXT))
        np.testing.assert_array_equal(result.heads[3].weights, look_at(model, IDS, list(TEXT)).heads[3].weights)
        assert result.tokens[1].identity == int(IDS[1])


@pytest.mark.parametrize(
    ("model", "tokens", "message"),
    [
        (decoder(), torch.stack([IDS, IDS]), "one sequence at a time"),
        (decoder(), {"input_ids": torch.stack([IDS, IDS])}, "one sequence at a time"),
        (decoder(), [], "nothing to look at"),
        (decoder(), ["to", "be"], "ids of one text"),
        (decoder(), [99] * 19, "DecoderModel cannot read these tokens"),
        (nn.Embedding(12, 4), IDS, "no heads to look at"),
        (nn.Linear(19, 2), IDS, "Linear cannot read these tokens"),
        ("runs/a", IDS, "give a PyTorch module"),
    ],
)
def test_invalid_arguments_are_explained(model, tokens, message: str) -> None:
    with pytest.raises(InputError, match=message):
        look_at(model, tokens, list(TEXT))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": 5}, "text = 5: give the text"),
        ({}, "give the text"),
        ({"text": TEXT, "laier": 0}, "Did you mean 'layer'"),
        ({"text": TEXT, "layer": "0"}, "layer = '0': give a whole number"),
        ({"text": TEXT, "head": True}, "head = True: give a whole number"),
    ],
)
def test_invalid_run_arguments_are_explained(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        look_at_run(make_run(decoder()), **options)


def test_nan_weights_are_refused() -> None:
    model = decoder()
    nn.init.constant_(next(model.parameters()), float("nan"))
    with pytest.raises(InputError, match="NaN"):
        look_at(model, IDS, list(TEXT))


def test_text_is_truncated_to_the_context_with_a_note() -> None:
    result = look_at_run(make_run(decoder(T=8, V=9)), TEXT)
    assert "".join(word.text for word in result.tokens) == TEXT[:8]
    assert result.notes == ("The text has 19 tokens; the first 8 were read.",)
    assert result.notes[0] in str(result) and result.model == "small"


def test_missing_attention_or_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="family lstm"):
        look_at_run(make_run(build(Lstm(V=9))), TEXT)
    with pytest.raises(DataError, match="no tokens"):
        look_at_run(make_run(decoder()), "")


def test_terminal_output_fits_80_columns_with_every_head() -> None:
    for heads, layers in ((4, 2), (12, 3), (9, 1)):
        text = str(look_at(decoder(h=heads, d=heads * 2, L=layers), IDS, list(TEXT)))
        assert max(map(len, text.splitlines())) <= 80
        rows = [line.split()[0] for line in text.splitlines() if re.match(r"\d+\.\d+ ", line)]
        assert rows == [f"{layer}.{head}" for layer in range(layers) for head in range(heads)]


def test_single_token_text_is_reported() -> None:
    result = look_at(decoder(), IDS[:1], ["t"])
    assert "none" in str(result) and result.heads[0].nearest is None
    assert result.heads[0].weights.tolist() == [[1.0]]


def test_to_dict_is_plain_and_complete(tmp_path: Path) -> None:
    result = look_at(decoder(), IDS, list(TEXT))
    values = json.loads(result.save(tmp_path / "heads.json").read_text())
    assert values == result.to_dict()
    assert [token["text"] for token in values["tokens"]] == list(TEXT)
    np.testing.assert_allclose(values["heads"][5]["weights"], result.heads[5].weights)
    assert set(values["heads"][0]["patterns"]) == {"previous", "next", "itself", "first", "same word", "induction"}


def test_oversized_weights_are_omitted_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lemma.inspection.heads.MAX_WEIGHTS", 100)
    values = look_at(decoder(), IDS, list(TEXT)).to_dict()
    assert values["heads"][0]["weights"] is None and "left out" in values["notes"][-1]


def test_table_has_a_row_per_head(tmp_path: Path) -> None:
    result = look_at(decoder(), IDS, list(TEXT))
    rows = list(csv.DictReader(io.StringIO(result.save(tmp_path / "heads.csv").read_text())))
    assert [(int(row["layer"]), int(row["head"])) for row in rows] == [(h.layer, h.head) for h in result.heads]
    assert float(rows[3]["entropy"]) == pytest.approx(result.heads[3].statistics.entropy)


def test_svg_is_well_formed_with_hostile_tokens(tmp_path: Path) -> None:
    words = ["<script>", "\x00", "&", '"', "\u202eabc", "💡", "\n", " "]
    for choice in ({}, {"layer": 0, "head": 0}):
        path = look_at(decoder(), IDS[:8], words, **choice).save(tmp_path / "heads.svg")
        tree = ElementTree.parse(path)
        assert not [node for node in tree.iter() if node.tag.endswith("script")]
    assert "<script>" in "".join(tree.getroot().itertext())
    cells = [node for node in tree.iter() if node.tag.endswith("rect")]
    assert len(cells) == 1 + 8 * 9 // 2  # the background, and the cells up to the diagonal


def test_unknown_file_suffix_error_lists_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.svg, \.html, .*\.json, \.csv"):
        look_at(decoder(), IDS, list(TEXT)).save(tmp_path / "heads.docx")


def test_matrix_image_has_expected_colors_and_empty_cells() -> None:
    image = pytest.importorskip("PIL.Image")
    weights, allowed = np.array([[1.0, 0.0], [0.25, 0.0]]), np.array([[True, False], [True, True]])
    pixels = image.open(io.BytesIO(encode_png(weights, allowed))).convert("RGBA")
    actual = [pixels.getpixel(index) for index in ((0, 0), (1, 0), (0, 1), (1, 1))]
    expected = [tuple(bytes.fromhex(COLOURS[level][1:])) for level in (254, 127, 0)]
    assert [actual[0][:3], actual[2][:3], actual[3][:3]] == expected
    assert [pixel[3] for pixel in actual] == [255, 0, 255, 255]


def luminance(colour: np.ndarray) -> float:
    """Return the relative luminance of a color from 0 to 1 (WCAG)."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_colormap_darkens_monotonically_for_color_blindness() -> None:
    """Includes simulated protanopia and deuteranopia (Viénot, Brettel and Mollon 1999)."""
    colours = np.array([list(bytes.fromhex(colour[1:])) for colour in COLOURS]) / 255
    without_red = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
    without_green = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])
    for eyes in (np.eye(3), without_red, without_green):
        luminances = [luminance(np.clip(eyes @ colour, 0, 1)) for colour in colours]
        assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(luminances))
        assert luminances[0] > 0.8 and luminances[-1] < 0.03


def test_text_contrast_is_sufficient_on_every_color() -> None:
    for number, colour in enumerate(COLOURS):
        lights = [luminance(np.array(list(bytes.fromhex(item[1:]))) / 255) for item in (colour, text_colour(number))]
        assert (max(lights) + 0.05) / (min(lights) + 0.05) > 3.9


def test_look_at_returns_heads() -> None:
    assert isinstance(look_at(decoder(), IDS, list(TEXT)), Heads)


def induction_model(tokens: int) -> nn.Module:
    """Build a two-layer induction circuit: a previous-token head and an induction head.

    The residual is (token, position, previous token), each one-hot. Head 0.0 attends from p to p − 1 and copies that
    token; head 1.0 attends from a token to positions whose previous token it is. Norms and feed-forward layers are
    omitted.
    """
    size = 2 * tokens
    model = build(Decoder(V=tokens, d=4 * tokens, L=2, h=1, T=size, positions="learned"))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    for layer in model.layers:
        layer.attention_norm = nn.Identity()
    width, sharp = 4 * tokens, 100.0 * (4 * tokens) ** 0.5
    item, before = torch.eye(tokens), slice(3 * tokens, width)
    with torch.no_grad():
        model.embedding.weight[:, :tokens] = item
        model.positions.weight[:, tokens : 3 * tokens] = torch.eye(size)
        first, second = (layer.attention.query_key_value.weight for layer in model.layers)
        first[tokens + torch.arange(size - 1), tokens + torch.arange(1, size)] = sharp  # queries: p matches p − 1
        first[width + torch.arange(tokens, 3 * tokens), torch.arange(tokens, 3 * tokens)] = 1.0  # keys: positions
        first[2 * width + torch.arange(tokens), torch.arange(tokens)] = 1.0  # values: tokens
        model.layers[0].attention.output.weight[before, :tokens] = item
        second[torch.arange(tokens), torch.arange(tokens)] = sharp  # queries: the token
        second[width + torch.arange(tokens), torch.arange(3 * tokens, width)] = 1.0  # keys: the previous token
    return model


def test_handmade_induction_head_is_detected() -> None:
    text = "abcdefgh"
    run = make_run(induction_model(len(text)), text)
    result = look_at_run(run, repeated=len(text))
    assert [word.visible_text for word in result.tokens[:8]] == [word.visible_text for word in result.tokens[8:]]
    assert len({word.visible_text for word in result.tokens}) == 8
    previous, induction = result.heads_by_pattern()["previous"][0], result.heads_by_pattern()["induction"][0]
    assert (previous[0].layer, induction[0].layer) == (0, 1)
    assert previous[1].score == pytest.approx(1.0, abs=1e-4)
    # the first token is its own previous token, so its second occurrence matches two positions
    assert induction[1].score == pytest.approx((7 + 1 / 2) / 8, abs=1e-4)
    assert [head.pattern for head in result.heads] == ["previous", "induction"]


def test_repeated_tokens_are_ordinary_and_fit_the_context() -> None:
    tokenizer = train_tokenizer(Characters(), ["abcdefgh"])
    assert sorted(repeated_tokens(tokenizer, 8, 16)[:8]) == sorted(tokenizer.encode("abcdefgh").tolist())
    assert repeated_tokens(tokenizer, 5, 16) == repeated_tokens(tokenizer, 5, 16)
    for wrong in (2, 8, True, "5"):
        with pytest.raises(InputError, match="from 3 to 7"):
            repeated_tokens(tokenizer, wrong, 15)  # pyright: ignore
    with pytest.raises(InputError, match="repeated=50"):
        look_at_run(make_run(decoder()), TEXT, repeated=5)


def test_terminal_summarizes_many_heads_by_best_pattern() -> None:
    torch.manual_seed(0)
    model = decoder(L=20)
    for parameter in model.parameters():
        nn.init.normal_(parameter)  # sharp attention
    result = look_at(model, IDS, list(TEXT))
    rendered = str(result).splitlines()
    assert all(len(line) <= 80 for line in rendered) and len(rendered) < 60
    assert sum(line.lstrip().startswith("layer ") for line in rendered) == 20
    name, pairs = next(iter(result.heads_by_pattern().items()))
    head, item = pairs[0]
    assert item.score == max(match.score for other in result.heads for match in other.matches if match.pattern == name)
    assert any(line.startswith(name) and f"{head.layer}.{head.head} {item.score:.2f}" in line for line in rendered)
