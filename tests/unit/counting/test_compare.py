"""Comparison of two models: differences as formulas, compared with pairs of real modules."""

import json
from typing import Any

import pytest
from torch import nn

import lemma
from lemma.counting.compare import merge_domains
from lemma.counting.fit import Domain
from lemma.counting.subject import resolve_subject
from lemma.errors import InputError, SpecError


def count_parameters(name: str, sizes: dict[str, int]) -> int:
    subject = resolve_subject(name, dict(sizes))
    return sum(parameter.numel() for parameter in subject.build(subject.symbols).parameters())


@pytest.mark.parametrize("names", [("lstm", "gru"), ("rnn", "lstm")])
def test_difference_is_that_of_the_modules_at_any_sizes(names: tuple[str, str]) -> None:
    (row,) = lemma.count.compare(*names, quantities=["parameters"], V=30).quantities
    assert row.formula is not None
    for sizes in ({"V": 31, "d": 12, "D": 7, "L": 3}, {"V": 50, "d": 20, "D": 33, "L": 2}):
        assert row.formula.at(sizes) == count_parameters(names[1], sizes) - count_parameters(names[0], sizes)
    assert row.difference == count_parameters(names[1], {"V": 30}) - count_parameters(names[0], {"V": 30})


def test_sizes_of_one_model_change_only_that_model() -> None:
    result = lemma.count.compare("decoder", "decoder", first_sizes={"L": 2}, quantities=["parameters"])
    assert result.different_sizes == {"L": (2, 4)} and "L differs" in str(result)
    (row,) = result.quantities
    assert row.formula == 0 and row.totals == (count_parameters("decoder", {"L": 2}), count_parameters("decoder", {}))
    assert "parameters: B − A at equal sizes = 0\n" in str(result)


def test_equal_models_have_a_difference_of_zero() -> None:
    text = str(lemma.count.compare("gru", "gru", quantities=["parameters"]))
    assert "parameters: B − A = 0\n" in text and "= 0 = 0" not in text


def test_equal_letters_of_different_rules_are_told_apart() -> None:
    def thirds(d: int = 100, L: int = 2) -> nn.Module:
        return nn.ModuleList(nn.Linear(d, 64 * -(-8 * d // 192), bias=False) for _ in range(L))

    def halves(d: int = 100, L: int = 2) -> nn.Module:
        return nn.ModuleList(nn.Linear(d, 16 * -(-d // 32), bias=False) for _ in range(L))

    (row,) = lemma.count.compare(thirds, halves, quantities=["parameters"]).quantities
    assert row.formula is not None and len(row.formula.symbols) == 4  # d, L and two roundings
    values = {letter: rule.at({"d": 500}) for q in (row.first, row.second) for letter, rule in q.rules.items()}
    assert row.formula.at({"d": 500, "L": 3, **values}) == 3 * 500 * (16 * 16 - 64 * 21)
    assert any("⌈d/24⌉" in note for note in row.notes) and any("⌈d/32⌉" in note for note in row.notes)


def test_dense_model_has_all_parameters_active() -> None:
    moe: dict[str, Any] = {"V": 60, "d": 32, "L": 2, "h": 4, "h_kv": 2, "E": 8, "k": 2, "d_e": 8, "T": 6}
    result = lemma.count.compare(
        lemma.count("qwen3_moe", quantities=["parameters", "active"], **moe),
        lemma.count("decoder", quantities=["parameters"]),
    )
    active = next(row for row in result.quantities if row.name == "active")
    assert active.totals[1] == count_parameters("decoder", {})


def test_every_format_has_the_formula() -> None:
    result = lemma.count.compare("lstm", "gru", quantities=["parameters"])
    assert "−D·(d + D·(2·L − 1) + L) = −98,560" in str(result)
    assert "-D(d + D(2L - 1) + L) = -98{,}560" in result.latex()
    assert "98,560" in result.markdown() and "98,560" in result._repr_html_()
    document: dict[str, Any] = json.loads(json.dumps(result.to_dict()))
    assert document["quantities"]["parameters"]["difference_formula"] == "-D*(d + D*(2*L - 1) + L)"


def test_domains_are_intersected() -> None:
    assert merge_domains(Domain(only_at={"B": 1}), Domain(only_at={"B": 2})) is None
    assert merge_domains(Domain(at_least={"L": 3}), Domain(at_most={"L": 2})) is None
    assert merge_domains(Domain(at_most={"T": 9}), Domain(at_most={"T": 5})) == Domain(at_most={"T": 5})


def test_wrong_input_is_explained() -> None:
    with pytest.raises(SpecError, match="unknown setting 'h_kv'"):
        lemma.count.compare("gpt2", "llama", h_kv=4)
    account = lemma.count("lstm", quantities=["parameters"])
    with pytest.raises(InputError, match="counted already"):
        lemma.count.compare(account, "gru", d=4)
