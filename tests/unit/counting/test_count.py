"""Accounts compared with the built module, PyTorch's FLOP counter, tensors saved by autograd, and the actual state."""

import csv
import json
import random
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import lemma
from lemma.counting.count import count
from lemma.counting.measure import optimizer_bytes, reference_kernels, saved_bytes, state_bytes
from lemma.counting.polynomial import symbol
from lemma.counting.subject import Subject, resolve_subject
from lemma.errors import CountingError, InputError, SpecError
from lemma.models.build import count_spec_parameters
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


def held_out_sizes(subject: Subject, seed: int) -> dict[str, int]:
    """Return sizes that differ from the probe sizes: odd widths, divisible by the heads."""
    source, sizes = random.Random(seed), {}
    heads = source.choice([3, 5])
    for name in subject.sizes(with_inputs=True):
        low, high = EXTREMES.get(name, (10, 40))
        sizes[name] = heads if name == "h" else source.randint(low, high)
        if "h" in subject.symbols and name in ("d", "d_h"):
            sizes[name] = heads * source.randint(3, 9)
    return sizes


@pytest.mark.parametrize(("name", "words"), [*((family, {}) for family in FAMILIES), *VARIANTS])
def test_formulas_match_the_built_module_at_held_out_sizes(name: str | Encoder | Classifier, words: dict) -> None:
    subject = resolve_subject(name, {**words, "B": 2})
    account = count(subject)
    for seed in (1, 2):
        values = held_out_sizes(subject, seed)
        module = subject.build(values)
        assert account.parameters.polynomial.at(values) == sum(p.numel() for p in module.parameters())
        forward, backward = pytorch_flops(subject, values)
        assert account.flops.polynomial.at(values) == forward
        assert account.backward.polynomial.at(values) == backward
        assert account.cache.polynomial.at(values) == _sum(state_bytes(module, subject.build_inputs(values)))
        assert account.optimizer.polynomial.at(values) == _sum(optimizer_bytes(module))
        if not account.activations.refused:
            assert account.activations.polynomial.at(values) == autograd_saved_bytes(subject, values)


def test_encoder_decoder_formulas_match_the_built_module() -> None:
    subject = resolve_subject("encoder-decoder")
    account = count(subject, ["parameters", "flops", "backward"])
    for seed in (1, 2):
        values = held_out_sizes(subject, seed)
        assert account.parameters.polynomial.at(values) == sum(p.numel() for p in subject.build(values).parameters())
        figures = account.flops.polynomial.at(values), account.backward.polynomial.at(values)
        assert figures == pytorch_flops(subject, values)


def test_encoder_decoder_cache_holds_source_and_target_keys_values() -> None:
    """The tokens and the mask of the source, which the state also holds, are excluded."""
    subject = resolve_subject("encoder-decoder", {"d_h": 24, "L_dec": 2, "B": 3, "S": 5, "T": 7})
    values = subject.sizes(with_inputs=True)
    saved = _sum(state_bytes(subject.build(values), subject.build_inputs(values)))
    assert saved == 3 * 2 * 2 * 24 * (5 + 7) * 4


def pytorch_flops(subject: Subject, values: dict[str, int]) -> tuple[int, int]:
    """Return the FLOPs that torch.utils.flop_counter counts on the meta device."""
    module, inputs = subject.build(values), subject.build_inputs(values)
    with FlopCounterMode(display=False) as counter:
        logits = module(*inputs.args, **inputs.kwargs)[0]
        forward = counter.get_total_flops()
        logits.sum().backward()
    return forward, counter.get_total_flops() - forward


def autograd_saved_bytes(subject: Subject, values: dict[str, int]) -> int:
    """Return the bytes of the storages that autograd holds after a forward pass, by walking its graph."""
    module, inputs = subject.build(values, "cpu"), subject.build_inputs(values, "cpu")
    custom = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    saved: dict[int, int] = {}
    retained = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        retained.append(tensor)
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs.args, **inputs.kwargs)
    return sum(size for address, size in saved.items() if address not in custom)


def _sum(readings) -> int:
    return sum(row[0] for row in readings.values())


def test_part_without_formula_is_measured_with_a_reason() -> None:
    """oneDNN's LSTM saves a workspace of whole blocks and pages."""
    account = lemma.count("lstm", quantities=["activations"], V=30, d=8, D=16, B=3, T=5)
    assert "layers" in account.activations.refused
    subject = resolve_subject("lstm", {"V": 30, "d": 8, "D": 16, "B": 3, "T": 5})
    values = subject.sizes(with_inputs=True)
    real = saved_bytes(subject.build(values, "cpu"), subject.build_inputs(values, "cpu"))
    assert account.activations.total == _sum(real)
    assert "follows no polynomial of" in str(account)


def test_flops_conventions_are_stated_and_applied() -> None:
    default = lemma.count("decoder", quantities=["flops"])
    single = lemma.count("decoder", quantities=["flops"], multiply_add=1)
    half = lemma.count("decoder", quantities=["flops"], causal="half")
    assert single.flops.total * 2 == default.flops.total
    sizes = default.symbols
    scores = 4 * sizes["L"] * sizes["B"] * sizes["T"] ** 2 * sizes["d_h"]
    assert default.flops.total - half.flops.total == scores // 2
    assert "causal attention half" in half.flops.convention
    products = lemma.count("feed-forward", quantities=["flops"])
    every = lemma.count("feed-forward", quantities=["flops"], elementwise=True)
    assert every.flops.total > products.flops.total


def test_head_width_is_fitted_as_a_quotient() -> None:
    def head(d: int = 64, h: int = 4) -> nn.Module:
        if d % h:
            raise ValueError("heads must divide the width")
        return nn.Linear(d, d // h, bias=False)

    account = lemma.count(head, d=64, h=4)
    assert account.parameters.formula == "d**2/h"
    assert account.parameters.total == 1024


def test_nonpolynomial_dimension_gets_its_own_symbol() -> None:
    def odd(width: int = 64, depth: int = 2) -> nn.Module:
        return nn.Linear(2**width, depth)

    account = lemma.count(odd, width=5, depth=2, quantities=["parameters", "optimizer"])
    assert account.optimizer.total == 8 * (2**5 * 2 + 2) + 8
    assert account.parameters.polynomial == symbol("depth") * (symbol("m") + 1)
    assert account.parameters.total == 2**5 * 2 + 2  # of the module built at the requested sizes
    assert "m = 32 at these sizes; it follows no formula of the others" in str(account)


def test_tied_tensors_count_once_and_frozen_are_noted() -> None:
    account = lemma.count("decoder", quantities=["parameters"])
    assert account.parameters.parts[0]["note"] == "tied: also output.weight"

    def frozen(d: int = 4) -> nn.Module:
        module = nn.Linear(d, d)
        module.bias.requires_grad_(False)
        return module

    notes = {part["path"]: part.get("note", "") for part in lemma.count(frozen, d=4).parameters.parts}
    assert notes == {"weight": "", "bias": "frozen"}


def test_differing_first_layer_has_its_own_group() -> None:
    paths = {part["path"]: part for part in lemma.count("torch-lstm", quantities=["parameters"]).parameters.parts}
    assert paths["weight_ih_l0"]["shape"] == ["4*D", "d"]
    assert paths["weight_ih_l1…"]["formula"] == "4*(L-1)*D**2"


def test_huge_model_is_counted_without_memory() -> None:
    account = lemma.count("decoder", V=50257, d=12288, L=96, h=96, T=2048)
    assert (
        account.parameters.total == 174_591_688_704 + 0 * account.parameters.total or account.parameters.total > 1.7e11
    )


def test_accounts_are_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    first = lemma.count("gru", quantities=["parameters"])

    def never(*args: object) -> None:
        raise AssertionError("probed again")

    monkeypatch.setattr("lemma.counting.count.fit_groups", never)
    assert lemma.count("gru", quantities=["parameters"], D=7).parameters.formula == first.parameters.formula


def test_unknown_and_missing_sizes_are_explained() -> None:
    with pytest.raises(SpecError, match="Did you mean 'decoder'"):
        lemma.count("decodr")
    with pytest.raises(InputError, match="Did you mean 'parameters'"):
        lemma.count("decoder", quantities=["paramters"])
    with pytest.raises(InputError, match="B = 0"):
        lemma.count("decoder", B=0)
    with pytest.raises(SpecError, match="Expected package"):
        lemma.count("nowhere.at:all")
    with pytest.raises(CountingError, match="only its parameters"):
        lemma.count("torch.nn:Linear", quantities=["flops"], in_features=4, out_features=2)
    with pytest.raises(InputError, match="needs a value for"):
        lemma.count("torch.nn:Linear", in_features=4)


def test_all_output_formats_show_the_same_figures() -> None:
    account = lemma.count("attentive", quantities=["parameters", "flops"])
    base = account.to_dict()
    assert base["parameters"]["total"] == sum(part["count"] for part in base["parameters"]["parts"])
    assert json.loads(json.dumps(base)) == base
    number = f"{base['parameters']['total']:,}"
    assert number in str(account) and number in account.markdown() and number in account._repr_html_()
    assert number.replace(",", "{,}") in account.latex()
    assert "http" not in account._repr_html_() and "<script" not in account._repr_html_()


def test_causal_attention_is_detected_inside_torch_modules() -> None:
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
def test_account_is_saved_in_the_format_of_the_suffix(suffix: str, tmp_path: Path) -> None:
    account = lemma.count("attentive", quantities=["parameters"])
    account.save(tmp_path / f"account{suffix}")
    assert "131" in (tmp_path / f"account{suffix}").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"unknown ending of the name .\.docx"):
        account.save(tmp_path / "account.docx")


def test_csv_rows_add_up_to_the_total(tmp_path: Path) -> None:
    account = lemma.count("attentive", quantities=["parameters"])
    with account.save(tmp_path / "account.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["count"]) for row in rows) == account.parameters.total
    assert rows[0]["path"] == "embedding.weight" and rows[0]["shape"] == "V × d"


def test_settings_reach_classifier_body_and_head() -> None:
    account = lemma.count(Classifier(body=Gru(tied=True, hidden=128)), quantities=["parameters"], K=5, d=8, hidden=8)
    assert account.parameters.total == count_spec_parameters(
        Classifier(body=Gru(tied=True, width=8, hidden=8), classes=5)
    )
    assert account.symbols["K"] == 5 and "D" not in account.symbols  # tied: D equals d
    with pytest.raises(SpecError, match="Did you mean 'hidden'"):
        lemma.count(Classifier(), hiden=8)


def test_source_length_is_a_separate_symbol() -> None:
    account = lemma.count("encoder-decoder", quantities=["flops"], S=10, T=30)
    assert (account.symbols["S"], account.symbols["T"]) == (10, 30)
    assert lemma.count("encoder-decoder", quantities=["flops"], T=30).symbols["S"] == 30
    with pytest.raises(InputError, match="S = 31: no source is longer than the context, T = 30"):
        lemma.count("encoder-decoder", quantities=["flops"], S=31, T=30)


def test_repeated_layers_are_factored_into_one_bracket() -> None:
    formula = lemma.count("transformer-c5", quantities=["parameters"]).parameters.formula
    assert formula.count("L_enc") == formula.count("L_dec") == 1


class Blocks(nn.Module):
    """A list of sequences, whose inner indices are different layers."""

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
def test_irregular_modules_are_counted_exactly(factory, sizes: dict[str, int]) -> None:
    account = lemma.count(factory, quantities=["parameters"], **sizes)
    assert account.parameters.total == sum(p.numel() for p in factory(**sizes).parameters())


def test_path_indices_that_are_not_layers_are_preserved() -> None:
    parts = {part["path"]: part["formula"] for part in lemma.count(blocks, quantities=["parameters"]).parameters.parts}
    assert parts["blocks.*.0.weight"] == "L*d" and parts["blocks.*.1.weight"] == "4*L*d**2"


def test_convolution_flops_are_quartic_in_kernel_size() -> None:
    account = lemma.count(convolution, quantities=["flops"], k=5, H=30, W=28)
    assert account.flops.total == 2 * 2 * 8 * 3 * 5 * 5 * (30 - 4) * (28 - 4)


def test_factory_is_imported_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_layers.py").write_text("from torch import nn\n\ndef one(d=4):\n    return nn.Linear(d, d)\n")
    monkeypatch.chdir(tmp_path)
    assert lemma.count("my_layers:one", quantities=["parameters"]).parameters.formula == "d*(d + 1)"


def test_unbuildable_subjects_are_explained() -> None:
    def broken(d: int = 3) -> nn.Module:
        raise KeyError("no such thing")

    with pytest.raises(CountingError, match="d=3: KeyError: 'no such thing'"):
        lemma.count(broken)
    with pytest.raises(CountingError, match="gives a int"):
        lemma.count(lambda d=3: 5)  # pyright: ignore[reportArgumentType]


def rounded_far_away(d: int = 64) -> nn.Module:
    """Build a width rounded up to 256, as in Llama's feed-forward layer: constant at small sizes."""
    return nn.Linear(d, 256 * -(-8 * d // 3 // 256), bias=False)


def test_rounding_beyond_probe_sizes_is_detected() -> None:
    account = lemma.count(rounded_far_away, d=4096, quantities=["parameters", "optimizer"])
    assert account.parameters.total == rounded_far_away(4096).weight.numel()
    assert account.symbols["m"] == 11_008 and account.parameters.polynomial == symbol("d") * symbol("m")
    assert account.optimizer.total == 8 * account.parameters.total + 4  # two moments, and the number of steps


def test_layer_that_exists_only_at_some_sizes_is_detected() -> None:
    def sometimes(d: int = 4, L: int = 2) -> nn.Module:
        return nn.ModuleDict({f"part{L if L > 3 else 0}": nn.Linear(d, d)})

    counted = lemma.count(sometimes, d=4, L=9, quantities=["parameters"]).parameters
    assert counted.total == 4 * 4 + 4 and "at the sizes asked for only" in counted.refused["part9.weight"]


def test_cache_distinguishes_factories_by_closure_values() -> None:
    def made(bias: bool):
        def layer(d: int = 4) -> nn.Module:
            return nn.Linear(d, d, bias=bias)

        return layer

    assert lemma.count(made(True)).parameters.total == 20
    assert lemma.count(made(False)).parameters.total == 16
    assert lemma.count(partial(nn.Linear, out_features=3), in_features=2).parameters.total == 9


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("feed-forward", {}),
        ("attentive", {}),
        ("torch-transformer", {"d": 24, "h": 2, "L_enc": 2, "L_dec": 2, "d_ff": 40, "S": 5, "T": 7}),
        ("lstm", {}),
    ],
)
def test_activations_at_batch_size_one_match_autograd(name: str, sizes: dict[str, int]) -> None:
    """With one row a view is contiguous, so less is saved than by the formula for larger batches."""
    subject = resolve_subject(name, sizes)
    counted = lemma.count(name, quantities=["activations"], **sizes).activations
    assert counted.total == autograd_saved_bytes(subject, subject.sizes(with_inputs=True))
    assert counted.domain.only_at == {"B": 1} and "holds at B = 1 only" in " ".join(counted.notes)


class LastKeys(nn.Module):
    """Attention of all positions over the last 128."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        last = self.key(stream)[:, -128:]
        return (self.query(stream) @ last.mT).softmax(-1) @ last


def last_keys(d: int = 32) -> nn.Module:
    return LastKeys(d)


last_keys.inputs = lambda d, B=1, T=4096: torch.zeros(B, T, d)  # pyright: ignore[reportFunctionMemberAccess]


def pytorch_module_flops(module: nn.Module, stream: torch.Tensor) -> tuple[int, int]:
    with FlopCounterMode(display=False) as counter:
        out = module(stream)
        forward = counter.get_total_flops()
        out.sum().backward()
    return forward, counter.get_total_flops() - forward


def test_flops_of_a_rounded_width_have_a_formula() -> None:
    def rounded_up(d: int = 1024) -> nn.Module:
        return rounded_far_away(d)

    rounded_up.inputs = lambda d, B=3: torch.zeros(B, d)  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(rounded_up, quantities=["flops", "optimizer"])
    assert account.flops.total == 2 * 3 * rounded_far_away(1024).weight.numel()
    assert account.flops.polynomial == 2 * symbol("d") * symbol("m") * symbol("B")
    assert account.optimizer.total == optimizer_bytes(rounded_far_away(1024))["weight"][0]


def test_forward_flops_are_equal_in_all_layers() -> None:
    account = lemma.count("torch-transformer", quantities=["flops", "backward"], d=24, h=2, d_ff=40)
    assert "-1" not in account.flops.formula
    assert account.flops.polynomial.symbols >= {"L_enc", "L_dec"}


def test_cache_of_sliding_window_and_state_space_models_is_exact() -> None:
    transformers = pytest.importorskip("transformers")
    none = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}

    def mistral(L: int = 2) -> nn.Module:
        sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 20}
        config = transformers.MistralConfig(
            vocab_size=30, num_hidden_layers=L, head_dim=4, sliding_window=64, **sizes, **none
        )
        return transformers.MistralForCausalLM(config)

    def mamba(L: int = 2) -> nn.Module:
        return transformers.MambaForCausalLM(
            transformers.MambaConfig(vocab_size=30, hidden_size=8, num_hidden_layers=L, state_size=4, **none)
        )

    def make_inputs(B: int, T: int) -> dict[str, object]:
        return {"input_ids": torch.zeros(B, T, dtype=torch.long), "use_cache": True}

    mistral.inputs = lambda B=1, T=128: make_inputs(B, T)  # longer than the window
    mamba.inputs = lambda B=1, T=8: make_inputs(B, T)  # its state does not depend on T, and transformers loops over T
    assert lemma.count(mistral, quantities=["cache"]).cache.total == 2 * 2 * 63 * 2 * 4 * 4  # the last 63 positions
    assert lemma.count(mamba, quantities=["cache"]).cache.formula == "512*L*B"


def test_count_cache_depends_on_modules_imported_by_factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner_part.py").write_text("from torch import nn\n\ndef part(d):\n    return nn.Linear(d, d)\n")
    (tmp_path / "outer_part.py").write_text("from inner_part import part\n")
    (tmp_path / "my_model.py").write_text(
        "import torch\nfrom torch import nn\n\ndef made(d=4):\n    import outer_part\n    return outer_part.part(d)\n\n"
        "made.inputs = lambda d, B=2: torch.zeros(B, d)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert lemma.count("my_model:made", quantities=["flops"]).flops.formula == "2*d**2*B"
    for name in ("my_model", "outer_part", "inner_part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "inner_part.py").write_text("from torch import nn\n\ndef part(d):\n    return nn.Linear(d, 3 * d)\n")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert lemma.count("my_model:made", quantities=["flops"]).flops.formula == "6*d**2*B"


class Filters(nn.Module):
    """Convolutions of several kernel sizes, which are the minimum length of a text."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.filters = nn.ModuleList(nn.Conv1d(width, channels, size) for size in (3, 4, 5))

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return torch.cat([item(stream).amax(-1) for item in self.filters], 1)


def filters(d: int = 32, c: int = 16) -> nn.Module:
    return Filters(d, c)


filters.inputs = lambda d, B=1, T=64: torch.zeros(B, d, T)  # pyright: ignore[reportFunctionMemberAccess]


def test_probe_sizes_are_restricted_to_runnable_sizes() -> None:
    account = lemma.count(filters, quantities=["flops"])
    assert account.flops.total == pytorch_module_flops(Filters(32, 16), torch.zeros(1, 32, 64))[0]
    assert account.flops.formula == "4*d*c*B*(6*T - 19)" and not account.flops.refused


class Experts(nn.Module):
    """Top-k experts in a data-dependent loop, which fake tensors cannot run."""

    def __init__(self, width: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(experts))
        self.chosen = chosen

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        weights, choice = self.gate(stream).softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(stream)
        for number, expert in enumerate(self.experts):
            rows, positions = (choice == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, expert(stream[rows]) * weights[rows, positions, None])
        return out


def experts(d: int = 16, E: int = 6, k: int = 2) -> nn.Module:
    return Experts(d, E, k)


experts.inputs = lambda d, T=8: torch.ones(T, d)  # pyright: ignore[reportFunctionMemberAccess]


def test_data_dependent_experts_are_counted_on_real_tensors() -> None:
    flops = lemma.count(experts, quantities=["flops"]).flops
    weighted_sum = 2 * 2 * 8 * 16
    assert flops.total == 2 * 8 * 16 * 6 + 2 * 2 * 8 * 16 * 16 + weighted_sum
    assert "counted as matrix products: multiplications in the module itself whose results are summed" in flops.notes


def test_frozen_module_has_no_backward_flops() -> None:
    def frozen(d: int = 8) -> nn.Module:
        return nn.Linear(d, d).requires_grad_(False)

    frozen.inputs = lambda d, B=2: torch.zeros(B, d)  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(frozen)
    assert (account.backward.total, account.optimizer.total, account.flops.total) == (0, 0, 2 * 2 * 8 * 8)


def test_single_probe_size_limits_the_domain() -> None:
    def deep(d: int = 8, L: int = 3) -> nn.Module:
        return nn.Sequential(*(nn.Linear(d, d, bias=False) for _ in range(L)))

    deep.probe_sizes = {"L": [3]}  # pyright: ignore[reportFunctionMemberAccess]
    counted = lemma.count(deep, quantities=["parameters"]).parameters
    assert (counted.formula, counted.domain.only_at) == ("3*d**2", {"L": 3})
    assert lemma.count(deep, quantities=["parameters"], L=5).parameters.total == 5 * 64


def test_failing_forward_is_reported_before_probing() -> None:
    def broken(d: int = 8) -> nn.Module:
        return nn.Linear(d, d)

    broken.inputs = lambda d, B=2: torch.zeros(B, d + 1)  # pyright: ignore[reportFunctionMemberAccess]
    with pytest.raises(CountingError, match="broken cannot be run at d=8 B=2: ") as caught:
        lemma.count(broken, quantities=["flops"])
    assert "\n" not in str(caught.value)


def test_grouped_products_of_experts_are_counted_forward_and_backward() -> None:
    transformers = pytest.importorskip("transformers")

    def mixtral(T: int = 8) -> nn.Module:
        none = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 24}
        config = transformers.MixtralConfig(
            vocab_size=30, num_hidden_layers=1, num_local_experts=4, num_experts_per_tok=2, head_dim=8, **sizes, **none
        )
        return transformers.MixtralForCausalLM(config)

    mixtral.inputs = lambda T, B=1: {"input_ids": torch.zeros(B, T, dtype=torch.long)}  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(mixtral, quantities=["flops", "backward"])
    choice = 2 * 3 * 16 * 24 + 2 * 16  # the two experts of a token, and the weighted sum of their outputs
    dense = 4 * 16 * 16 + 16 * 4 + 30 * 16
    assert account.flops.total == 2 * 8 * (choice + dense) + 4 * 8 * 8 * 16
    assert account.backward.total == 2 * account.flops.total


class RoundedGate(nn.Module):
    """Gated layers whose inner width is 8d/3, rounded up to a multiple of 64."""

    def __init__(self, d: int, L: int) -> None:
        super().__init__()
        inner = -(-8 * d // 3 // 64) * 64
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(d, inner), nn.Linear(inner, d)) for _ in range(L))


def rounded_gate(d: int = 512, L: int = 4) -> nn.Module:
    return RoundedGate(d, L)


def test_rounded_dimension_gets_a_symbol_and_a_rule() -> None:
    account = lemma.count(rounded_gate, quantities=["parameters"])
    inner = account.symbols["m"]
    assert inner == 1408 and account.parameters.total == sum(p.numel() for p in rounded_gate().parameters())
    assert account.parameters.polynomial == symbol("L") * (2 * symbol("d") * symbol("m") + symbol("d") + symbol("m"))
    assert account.parameters.to_dict()["named"] == {"m": 1408}
    assert account.parameters.to_dict()["rules"] == {"m": "64*ceil(d/24)"} and "m = 64·⌈d/24⌉ = 1,408" in str(account)
    for d in (9, 24, 25, 1000):
        present = account.quantities["parameters"].at({"d": d, "L": 2})
        assert present == sum(p.numel() for p in rounded_gate(d, 2).parameters())


def halves(d: int = 64, L: int = 6) -> nn.Module:
    layers = [nn.Linear(d, d // 2, bias=layer % 2 == 1) for layer in range(L)]
    return nn.ModuleList(nn.Sequential(layer, nn.Linear(d // 2, d, bias=False)) for layer in layers)


def test_floor_division_and_alternating_layers_have_formulas() -> None:
    counted = lemma.count(halves, quantities=["parameters"]).parameters
    rules = {name: rule.write() for name, rule in counted.rules.items()}
    (half,) = (name for name, rule in rules.items() if rule == "floor(d/2)")
    (second,) = (name for name, rule in rules.items() if rule == "floor(L/2)")
    assert counted.polynomial == 2 * symbol("L") * symbol("d") * symbol(half) + symbol(half) * symbol(second)
    for d, L in ((64, 6), (63, 5), (2, 1)):
        assert counted.at({"d": d, "L": L}) == sum(p.numel() for p in halves(d, L).parameters())
    even = lemma.check.parameters(halves, "Ld^2 + Ld/4")
    assert even.equal  # equal where both are even, as here


def measure_every_quantity(factory, **sizes: int) -> dict[str, int]:
    """Return measured quantities of the module: FLOPs by PyTorch, bytes saved by autograd, bytes of outputs."""
    subject = resolve_subject(factory, sizes)
    values = subject.sizes(with_inputs=True)
    module, inputs = subject.build(values, "cpu"), subject.build_inputs(values, "cpu")
    with reference_kernels(), FlopCounterMode(display=False) as counter:
        out = module(*inputs.args)
        forward = counter.get_total_flops()
        out[0].sum().backward()
    backward = counter.get_total_flops() - forward
    saved = sum(item.numel() * 4 for item in out[1])
    return {
        "flops": forward,
        "backward": backward,
        "activations": autograd_saved_bytes(subject, values),
        "cache": saved,
    }


class OddLayers(nn.Module):
    """Layers over the last w positions with a rounded width; every second one has an additional layer."""

    def __init__(self, d: int, L: int, w: int) -> None:
        super().__init__()
        self.w = w
        inner = 16 * -(-d // 12)
        self.layers = nn.ModuleList(nn.Linear(d, inner, bias=False) for _ in range(L))
        self.back = nn.ModuleList(nn.Linear(inner, d, bias=False) for _ in range(L))
        self.more = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(L // 2))

    def forward(self, stream: Tensor) -> tuple[Tensor, list[Tensor]]:
        saved = []
        for at, (layer, back) in enumerate(zip(self.layers, self.back, strict=True)):
            saved.append(stream[:, -self.w :])
            stream = back(layer(stream)) + (stream @ saved[-1].mT).softmax(-1) @ saved[-1]
            stream = self.more[at // 2](stream) if at % 2 else stream
        return stream, saved


def odd_layers(d: int = 32, L: int = 3, w: int = 16) -> nn.Module:
    return OddLayers(d, L, w)


odd_layers.inputs = lambda d, B=2, T=40: torch.zeros(B, T, d)  # pyright: ignore[reportFunctionMemberAccess]


def test_piecewise_formulas_hold_on_both_sides_of_their_bends() -> None:
    account = lemma.count(odd_layers, quantities=["flops", "backward", "cache"])
    for sizes in ({}, {"T": 15}, {"T": 16}, {"T": 17}, {"d": 36}, {"d": 37, "L": 4, "w": 5, "B": 3}):
        real = measure_every_quantity(odd_layers, **sizes)
        present = {**account.symbols, **sizes}
        present = {name: present[name] for name in ("d", "L", "w", "B", "T")}
        assert {name: quantity.at(present) for name, quantity in account.quantities.items()} == {
            name: real[name] for name in account.quantities
        }
    rules = {rule.write() for quantity in account.quantities.values() for rule in quantity.rules.values()}
    assert rules >= {"min(w, T)", "16*ceil(d/12)", "floor(L/2)"}


def test_module_defined_dimension_is_a_symbol_in_every_quantity() -> None:
    def prime(d: int = 20) -> nn.Module:
        inner = next(n for n in range(2 * d, 4 * d) if all(n % k for k in range(2, n)))
        return nn.Sequential(nn.Linear(d, inner, bias=False), nn.Linear(inner, d, bias=False))

    prime.inputs = lambda d, B=3: torch.zeros(B, d)  # pyright: ignore[reportFunctionMemberAccess]
    account = lemma.count(prime, quantities=["parameters", "flops", "activations", "optimizer"])
    d, m, B = map(symbol, "dmB")
    assert account.symbols["m"] == 41 and account.flops.polynomial == 4 * d * m * B
    assert account.parameters.polynomial == 2 * d * m and account.activations.polynomial == 4 * B * (d + m)
    assert account.optimizer.total == 8 * 2 * 20 * 41 + 8
    assert account.quantities["flops"].evaluate({"d": 21, "B": 3}) is None  # m is not known there
    assert account.quantities["flops"].at({"d": 21, "B": 3}) == 4 * 21 * 43 * 3  # measured on the module


def test_first_bend_in_sequence_length_becomes_a_minimum() -> None:
    account = lemma.count(last_keys, quantities=["flops", "backward"])
    assert (account.flops.total, account.backward.total) == pytorch_module_flops(LastKeys(32), torch.zeros(1, 4096, 32))
    assert {name: rule.write() for name, rule in account.quantities["flops"].rules.items()} == {"m": "min(T, 128)"}
    for T in (64, 127, 128, 129, 300):
        assert (
            account.quantities["flops"].at({"d": 32, "B": 1, "T": T})
            == pytorch_module_flops(LastKeys(32), torch.zeros(1, T, 32))[0]
        )


class RoutedExperts(nn.Module):
    """Each token is sent to the top k of E experts."""

    def __init__(self, d: int, E: int, k: int) -> None:
        super().__init__()
        self.k, self.router = k, nn.Linear(d, E, bias=False)
        self.experts = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(E))
        self.stacked = nn.Parameter(torch.randn(E, d, d))

    def forward(self, rows: Tensor) -> Tensor:
        fractions, choice = self.router(rows).softmax(-1).topk(self.k, -1)
        result = (fractions[..., None, None] * self.stacked[choice]).sum(1).matmul(rows[..., None])[..., 0]
        for number, expert in enumerate(self.experts):
            row, index = (choice == number).nonzero(as_tuple=True)
            if len(row):
                result = result.index_add(0, row, fractions[row, index, None] * expert(rows[row]))
        return result


def routed_experts(d: int = 16, E: int = 6, k: int = 2) -> nn.Module:
    return RoutedExperts(d, E, k)


routed_experts.inputs = lambda d, B=4: torch.ones(B, d)  # pyright: ignore[reportFunctionMemberAccess]


def test_active_parameters_of_mixture_of_experts_are_counted() -> None:
    account = lemma.count(routed_experts, quantities=["parameters", "active"])
    d, E, k = map(symbol, "dEk")
    assert account.parameters.polynomial == d * E + 2 * E * d**2
    assert account.active.polynomial == d * E + 2 * k * d**2
    assert "active" not in lemma.count("feed-forward", quantities=["parameters", "active"]).quantities


def test_padded_chunks_of_tokens_have_a_formula():
    class Chunked(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.W = nn.Linear(d, d, bias=False)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            rows = nn.functional.pad(self.W(rows), (0, 0, 0, -rows.shape[1] % 24))
            chunks = rows.unflatten(1, (-1, 24))
            return (chunks @ chunks.mT) @ chunks

    def chunked(d: int = 8) -> nn.Module:
        return Chunked(d)

    chunked.inputs = lambda d, B=3, T=1000: torch.zeros(B, T, d)
    flops = lemma.count(chunked, quantities=["flops"]).quantities["flops"]
    assert not flops.refused and [rule.name for rule in flops.rules.values()] == ["ceil(T/24)"]
    d, B, T = 8, 3, 1000
    assert flops.total == 2 * B * T * d * d + 4 * B * 42 * 24 * 24 * d
