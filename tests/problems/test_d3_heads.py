"""Problem D3: one head and many heads have 3d² parameters and equal FLOPs, but h softmaxes."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import lemma
from lemma.checking.read_formula import read_formula
from lemma.spec.studies import read_study
from lemma.studies.costs import bare_attention, explicit_attention
from lemma.studies.experiment import run_study

pytestmark = pytest.mark.usefixtures("account_cache")


def test_parameters_and_flops_match_the_problem() -> None:
    account = lemma.count(bare_attention, quantities=["parameters", "flops"])
    for name, formula in {"parameters": "3*d^2", "flops": "2*B*(3*T*d^2 + 2*T^2*d)"}.items():
        assert getattr(account, name).polynomial == read_formula(formula, account.order).to_polynomial()
        assert "h" not in getattr(account, name).polynomial.symbols
    assert (account.parameters.total, account.flops.total) == (12_288, 2_621_440)


@pytest.mark.parametrize("h", [1, 2, 8])
def test_explicit_attention_flops_do_not_depend_on_heads(h: int) -> None:
    n, d, used = 20, 16, 0
    X, W = torch.randn(n, d), torch.randn(h, 3, d, d // h)
    with FlopCounterMode(display=False) as counter:
        for W_q, W_k, W_v in W:
            weights = (X @ W_q @ (X @ W_k).T).softmax(-1)
            used += len(weights)
            weights @ (X @ W_v)
    assert W.numel() == 3 * d**2 == sum(parameter.numel() for parameter in bare_attention(d, h).parameters())
    assert counter.get_total_flops() == 2 * (3 * n * d**2 + 2 * n**2 * d)
    assert used == h * n, "one softmax a head and query"


def test_layer_equals_concatenated_heads() -> None:
    part, X = bare_attention(8, 2).double(), torch.randn(1, 5, 8, dtype=torch.double)
    queries, keys, values = (part.query_key_value.weight.detach() @ X[0].T).T.split(8, 1)
    heads = [(queries[:, cut] @ keys[:, cut].T / 2).softmax(-1) @ values[:, cut] for cut in (slice(0, 4), slice(4, 8))]
    for built in (part(X)[0], explicit_attention(part, X)):
        torch.testing.assert_close(built[0].detach(), torch.cat(heads, 1))


def test_study_counts_equal_flops_and_times_both(tmp_path: Path) -> None:
    words = {"d": 16, "heads": [1, 8], "T": 12, "B": 2, "repetitions": 3, "device": "cpu", "paths": "explicit"}
    spec = read_study("heads", words)
    item, many = run_study(spec, tmp_path).rows
    assert item.counts == {"parameters": 768, "flops": 2 * 2 * (3 * 12 * 256 + 2 * 144 * 16), "exponentials": 288}
    assert many.counts == {**item.counts, "exponentials": 8 * 288}
    assert item.both_ratio.median == 1 and many.both_ratio.median > 0
