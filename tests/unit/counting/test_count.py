"""Accounts against the real thing: the built module, PyTorch's own counter, what autograd saved, the real state."""

import csv
import json
import random
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import lemma
from lemma.counting.count import count
from lemma.counting.measure import optimizer_bytes, saved_bytes, state_bytes
from lemma.counting.subject import Subject, subject_of
from lemma.errors import InputError, LedgerError, SpecError
from lemma.models.build import parameters_of
from lemma.spec.models import Classifier, Encoder, FeedForward, Gru
from lemma.spec.positions import Alibi

FAMILIES = ["feed-forward", "attentive", "rnn", "lstm", "gru", "decoder", "table-a5"]
EXTREMES = {"N": (3, 9), "T": (12, 20), "B": (2, 5), "L": (1, 4), "S": (3, 11), "L_enc": (1, 3), "L_dec": (1, 3)}
VARIANTS = [
    ("decoder", {"tied": False, "bias": False, "norm": "rms", "positions": "sinusoidal"}),
    ("decoder", {"positions": "none", "activation": "relu"}),
    ("lstm", {"biases": 2}),
    ("gru", {"biases": 0}),
    ("rnn", {"tied": True, "width": 256}),
    (Encoder(objective="both", norm_place="post", positions=Alibi()), {}),
    (Classifier(body=FeedForward(), classes=3), {}),
]


def held_out(subject: Subject, seed: int) -> dict[str, int]:
    """Sizes that are no probe sizes: odd widths, which heads divide where there are any."""
    source, sizes = random.Random(seed), {}
    heads = source.choice([3, 5])
    for name in subject.sizes(running=True):
        low, high = EXTREMES.get(name, (10, 40))
        sizes[name] = heads if name == "h" else source.randint(low, high)
        if "h" in subject.symbols and name in ("d", "d_h"):
            sizes[name] = heads * source.randint(3, 9)
    return sizes


@pytest.mark.parametrize(("name", "words"), [*((family, {}) for family in FAMILIES), *VARIANTS])
def test_formulas_equal_what_the_module_really_does_at_sizes_they_have_not_seen(
    name: str | Encoder | Classifier, words: dict
) -> None:
    subject = subject_of(name, words)
    account = count(subject)
    for seed in (1, 2):
        values = held_out(subject, seed)
        module = subject.build(values)
        assert account.parameters.polynomial.at(values) == sum(p.numel() for p in module.parameters())
        forward, backward = by_pytorch(subject, values)
        assert account.flops.polynomial.at(values) == forward
        assert account.backward.polynomial.at(values) == backward
        assert account.cache.polynomial.at(values) == _sum(state_bytes(module, subject.inputs(values)))
        assert account.optimizer.polynomial.at(values) == _sum(optimizer_bytes(module))
        if not account.activations.quantity.refused:
            assert account.activations.polynomial.at(values) == really_saved(subject, values)


def test_formulas_of_a_source_and_a_target_equal_what_the_module_really_does() -> None:
    subject = subject_of("encoder-decoder")
    account = count(subject, ["parameters", "flops", "backward"])
    for seed in (1, 2):
        values = held_out(subject, seed)
        assert account.parameters.polynomial.at(values) == sum(p.numel() for p in subject.build(values).parameters())
        figures = account.flops.polynomial.at(values), account.backward.polynomial.at(values)
        assert figures == by_pytorch(subject, values)


def test_what_a_translation_keeps_is_keys_and_values_of_both_sides() -> None:
    """And the tokens themselves, 8 bytes each, with the mask of the source."""
    subject = subject_of("encoder-decoder", {"d_h": 24, "L_dec": 2, "B": 3, "S": 5, "T": 7})
    values = subject.sizes(running=True)
    kept = _sum(state_bytes(subject.build(values), subject.inputs(values)))
    assert kept == 3 * 2 * 2 * 24 * (5 + 7) * 4 + 3 * 7 * 8 + 3 * 5


def by_pytorch(subject: Subject, values: dict[str, int]) -> tuple[int, int]:
    """The operations that torch.utils.flop_counter counts on the meta device."""
    module, inputs = subject.build(values), subject.inputs(values)
    with FlopCounterMode(display=False) as counter:
        logits = module(*inputs.positional, **inputs.named)[0]
        forward = counter.get_total_flops()
        logits.sum().backward()
    return forward, counter.get_total_flops() - forward


def really_saved(subject: Subject, values: dict[str, int]) -> int:
    """The storages that autograd holds after a forward pass, found by walking the graph it built."""
    module, inputs = subject.build(values, "cpu"), subject.inputs(values, "cpu")
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    saved: dict[int, int] = {}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs.positional, **inputs.named)
    return sum(size for address, size in saved.items() if address not in own)


def _sum(readings) -> int:
    return sum(row[0] for row in readings.values())


def test_a_part_without_a_formula_is_measured_and_says_why() -> None:
    """oneDNN's LSTM saves a workspace of whole blocks and pages."""
    account = lemma.count("lstm", quantities=["activations"], V=30, d=8, D=16, B=3, T=5)
    assert "layers" in account.activations.quantity.refused
    subject = subject_of("lstm", {"V": 30, "d": 8, "D": 16, "B": 3, "T": 5})
    values = subject.sizes(running=True)
    real = saved_bytes(subject.build(values, "cpu"), subject.inputs(values, "cpu"))
    assert account.activations.total == _sum(real)
    assert "follows no polynomial of" in str(account)


def test_conventions_are_named_and_change_the_figure() -> None:
    usual = lemma.count("decoder", quantities=["flops"])
    single = lemma.count("decoder", quantities=["flops"], multiply_add=1)
    half = lemma.count("decoder", quantities=["flops"], causal="half")
    every = lemma.count("decoder", quantities=["flops"], elementwise=True)
    assert single.flops.total * 2 == usual.flops.total
    sizes = usual.symbols
    scores = 4 * sizes["L"] * sizes["B"] * sizes["T"] ** 2 * sizes["d_h"]
    assert usual.flops.total - half.flops.total == scores // 2
    assert every.flops.total > usual.flops.total
    assert "causal attention half" in half.flops.quantity.convention


def test_heads_that_do_not_divide_are_avoided_and_a_head_width_is_a_quotient() -> None:
    def head(d: int = 64, h: int = 4) -> nn.Module:
        if d % h:
            raise ValueError("heads must divide the width")
        return nn.Linear(d, d // h, bias=False)

    account = lemma.count(head, d=64, h=4)
    assert account.parameters.formula == "d**2/h"
    assert account.parameters.total == 1024


def test_what_is_no_polynomial_is_refused_with_the_symbol_named() -> None:
    def odd(width: int = 64, depth: int = 2) -> nn.Module:
        return nn.Linear(2**width, depth)

    account = lemma.count(odd, width=5, depth=2, quantities=["parameters"])
    assert "no polynomial of width" in account.parameters.quantity.refused["weight"]
    assert account.parameters.total == 2**5 * 2 + 2  # as it was built, at the sizes asked for
    assert "what follows no formula" in str(account)


def test_a_tied_tensor_counts_once_and_frozen_ones_are_named() -> None:
    account = lemma.count("decoder", quantities=["parameters"])
    assert account.parameters.parts[0]["note"] == "tied: also output.weight"

    def frozen(d: int = 4) -> nn.Module:
        module = nn.Linear(d, d)
        module.bias.requires_grad_(False)
        return module

    notes = {part["path"]: part.get("note", "") for part in lemma.count(frozen, d=4).parameters.parts}
    assert notes == {"weight": "", "bias": "frozen"}


def test_layers_that_differ_at_one_end_stand_apart() -> None:
    paths = {part["path"]: part for part in lemma.count("torch-lstm", quantities=["parameters"]).parameters.parts}
    assert paths["weight_ih_l0"]["shape"] == ["4*D", "d"]
    assert paths["weight_ih_l1…"]["formula"] == "4*(L-1)*D**2"


def test_a_huge_model_costs_no_memory() -> None:
    account = lemma.count("decoder", V=50257, d=12288, L=96, h=96, T=2048)
    assert (
        account.parameters.total == 174_591_688_704 + 0 * account.parameters.total or account.parameters.total > 1.7e11
    )


def test_accounts_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    first = lemma.count("gru", quantities=["parameters"])

    def never(*given: object) -> None:
        raise AssertionError("probed again")

    monkeypatch.setattr("lemma.counting.count.probe", never)
    assert lemma.count("gru", quantities=["parameters"], D=7).parameters.formula == first.parameters.formula


def test_wrong_words_are_told() -> None:
    with pytest.raises(SpecError, match="Did you mean 'decoder'"):
        lemma.count("decodr")
    with pytest.raises(InputError, match="Did you mean 'parameters'"):
        lemma.count("decoder", quantities=["paramters"])
    with pytest.raises(InputError, match="B = 0"):
        lemma.count("decoder", B=0)
    with pytest.raises(SpecError, match="Expected package"):
        lemma.count("nowhere.at:all")
    with pytest.raises(LedgerError, match="only its parameters"):
        lemma.count("torch.nn:Linear", quantities=["flops"], in_features=4, out_features=2)
    with pytest.raises(InputError, match="needs a value for"):
        lemma.count("torch.nn:Linear", in_features=4)


def test_every_form_of_output_says_the_same() -> None:
    account = lemma.count("attentive", quantities=["parameters", "flops"])
    plain = account.to_dict()
    assert plain["parameters"]["total"] == sum(part["count"] for part in plain["parameters"]["parts"])
    assert json.loads(json.dumps(plain)) == plain
    number = f"{plain['parameters']['total']:,}"
    assert number in str(account) and number in account.markdown() and number in account._repr_html_()
    assert number.replace(",", "{,}") in account.latex()
    assert "http" not in account._repr_html_() and "<script" not in account._repr_html_()


def test_causal_attention_is_seen_inside_pytorch_s_own_modules() -> None:
    def attention(d: int = 12, h: int = 2) -> nn.Module:
        return CausalHeads(d, h)

    attention.inputs = lambda d, T=8, B=2: torch.zeros(B, T, d)  # pyright: ignore[reportFunctionMemberAccess]
    full, half = (lemma.count(attention, quantities=["flops"], causal=causal) for causal in ("full", "half"))
    sizes = full.symbols
    assert full.flops.total - half.flops.total == 4 * sizes["B"] * sizes["T"] ** 2 * sizes["d"] // 2


class CausalHeads(nn.Module):
    """torch.nn's attention, whose fused call is made inside one of PyTorch's functions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(stream.shape[1], device=stream.device)
        return self.attention(stream, stream, stream, attn_mask=mask, is_causal=True, need_weights=False)[0]


@pytest.mark.parametrize("suffix", [".html", ".md", ".tex", ".json", ".txt", ".svg"])
def test_an_account_is_saved_in_the_form_its_name_says(suffix: str, tmp_path: Path) -> None:
    account = lemma.count("attentive", quantities=["parameters"])
    account.save(tmp_path / f"account{suffix}")
    assert "131" in (tmp_path / f"account{suffix}").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"the ending of the name = .\.docx"):
        account.save(tmp_path / "account.docx")


def test_the_rows_of_a_csv_add_up_to_the_total(tmp_path: Path) -> None:
    account = lemma.count("attentive", quantities=["parameters"])
    with account.save(tmp_path / "account.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["count"]) for row in rows) == account.parameters.total
    assert rows[0]["path"] == "embedding.weight" and rows[0]["shape"] == "V × d"


def test_words_reach_the_body_of_a_classifier_and_its_head() -> None:
    account = lemma.count(Classifier(body=Gru(tied=True, hidden=128)), quantities=["parameters"], K=5, d=8, hidden=8)
    assert account.parameters.total == parameters_of(Classifier(body=Gru(tied=True, width=8, hidden=8), classes=5))
    assert account.symbols["K"] == 5 and "D" not in account.symbols  # tied, D is d by another name
    with pytest.raises(SpecError, match="Did you mean 'hidden'"):
        lemma.count(Classifier(), hiden=8)


def test_a_source_has_a_length_of_its_own() -> None:
    account = lemma.count("encoder-decoder", quantities=["flops"], S=10, T=30)
    assert (account.symbols["S"], account.symbols["T"]) == (10, 30)
    assert lemma.count("encoder-decoder", quantities=["flops"], T=30).symbols["S"] == 30
    with pytest.raises(InputError, match="S = 31: no source is longer than the context, T = 30"):
        lemma.count("encoder-decoder", quantities=["flops"], S=31, T=30)


def test_what_is_repeated_by_a_number_stands_in_one_bracket() -> None:
    formula = lemma.count("transformer-c5", quantities=["parameters"]).parameters.formula
    assert formula.count("L_enc") == formula.count("L_dec") == 1


class Blocks(nn.Module):
    """A list of sequences, whose inner numbers stand for different layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width)) for _ in range(depth)
        )


def blocks(d: int = 32, L: int = 4) -> nn.Module:
    return Blocks(d, L)


def growing(d: int = 8, L: int = 3) -> nn.Module:
    return nn.ModuleList(nn.Linear(d * (layer + 1), d) for layer in range(L))


def rounded(d: int = 64, m: int = 32) -> nn.Module:
    return nn.Linear(d, m * -(-d // m), bias=False)


def convolution(c: int = 3, o: int = 8, k: int = 3) -> nn.Module:
    return nn.Conv2d(c, o, k)


convolution.inputs = lambda c, B=2, H=16, W=16: torch.zeros(B, c, H, W)  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize(("factory", "sizes"), [(blocks, {"d": 5, "L": 7}), (growing, {"d": 3, "L": 9}), (rounded, {})])
def test_strange_modules_are_counted_as_they_are(factory, sizes: dict[str, int]) -> None:
    account = lemma.count(factory, quantities=["parameters"], **sizes)
    assert account.parameters.total == sum(p.numel() for p in factory(**sizes).parameters())


def test_numbers_in_a_path_that_count_no_layers_stay() -> None:
    parts = {part["path"]: part["formula"] for part in lemma.count(blocks, quantities=["parameters"]).parameters.parts}
    assert parts["blocks.*.0.weight"] == "L*d" and parts["blocks.*.1.weight"] == "4*L*d**2"


def test_a_convolution_is_of_the_fourth_power_in_its_kernel() -> None:
    account = lemma.count(convolution, quantities=["flops"], k=5, H=30, W=28)
    assert account.flops.total == 2 * 2 * 8 * 3 * 5 * 5 * (30 - 4) * (28 - 4)


def test_a_factory_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_layers.py").write_text("from torch import nn\n\ndef one(d=4):\n    return nn.Linear(d, d)\n")
    monkeypatch.chdir(tmp_path)
    assert lemma.count("my_layers:one", quantities=["parameters"]).parameters.formula == "d*(d + 1)"


def test_what_cannot_be_built_says_why() -> None:
    def broken(d: int = 3) -> nn.Module:
        raise KeyError("no such thing")

    with pytest.raises(LedgerError, match="d=3: 'no such thing'"):
        lemma.count(broken)
    with pytest.raises(LedgerError, match="gives a int"):
        lemma.count(lambda d=3: 5)  # pyright: ignore[reportArgumentType]


def rounded_far_away(d: int = 64) -> nn.Module:
    """As Llama's feed-forward part is: a multiple of 256, which small sizes do not tell from a constant."""
    return nn.Linear(d, 256 * -(-8 * d // 3 // 256), bias=False)


def test_what_changes_only_far_from_the_sizes_probed_is_found_out() -> None:
    account = lemma.count(rounded_far_away, d=4096, quantities=["parameters", "optimizer"])
    assert account.parameters.total == rounded_far_away(4096).weight.numel()
    assert "no polynomial" in account.parameters.quantity.refused["weight"]
    assert account.optimizer.total is None


def test_a_layer_that_is_there_only_sometimes_is_found_out() -> None:
    def sometimes(d: int = 4, L: int = 2) -> nn.Module:
        return nn.ModuleDict({f"part{L if L > 3 else 0}": nn.Linear(d, d)})

    with pytest.raises(LedgerError, match="no polynomial of d, L"):
        lemma.count(sometimes, d=4, L=9, quantities=["parameters"])


def test_factories_that_differ_in_what_they_hold_are_not_taken_for_one_another() -> None:
    def made(bias: bool):
        def layer(d: int = 4) -> nn.Module:
            return nn.Linear(d, d, bias=bias)

        return layer

    assert lemma.count(made(True)).parameters.total == 20
    assert lemma.count(made(False)).parameters.total == 16
    assert lemma.count(partial(nn.Linear, out_features=3), in_features=2).parameters.total == 9
