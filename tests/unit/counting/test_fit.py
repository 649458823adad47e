"""Fitting: polynomials are recovered, other functions are refused, paths are grouped."""

import doctest
from importlib import import_module
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lemma.counting import count as cache
from lemma.counting.fit import (
    NotPolynomial,
    PathGroup,
    choose_probe_sizes,
    fit_groups,
    fit_polynomials,
    sample_sizes,
    total_size,
    verify_fit,
)
from lemma.counting.polynomial import Polynomial, symbol
from lemma.errors import CountingError

NAMES = ("V", "d", "L")
SIZES = {name: [2, 3, 4, 5, 6, 7, 8, 9] for name in NAMES}
MONOMIALS = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), max_size=3)
POLYNOMIALS = st.dictionaries(
    MONOMIALS.map(lambda powers: tuple(sorted(powers.items()))), st.integers(-9, 99), max_size=5
).map(Polynomial)


@settings(deadline=None, max_examples=60)
@given(POLYNOMIALS)
def test_polynomial_is_recovered_from_its_values(hidden: Polynomial) -> None:
    def sample(values):
        return {"it": int(hidden.at(values))}

    result = fit_polynomials(sample, SIZES)
    assert result["it"] == hidden
    verify_fit(result, sample, sample_sizes(SIZES, 20), SIZES)


@settings(deadline=None, max_examples=30)
@given(POLYNOMIALS.filter(lambda hidden: hidden.symbols), st.sampled_from(NAMES))
def test_mismatch_at_a_held_out_size_names_the_symbol(hidden: Polynomial, name: str) -> None:
    far = dict.fromkeys(NAMES, 2) | {name: 9}

    def sample(values):
        return {"it": int(hidden.at(values)) + (values[name] == 9)}

    with pytest.raises(NotPolynomial, match=f"no polynomial of {name}: at {name} = 9") as caught:
        verify_fit({"it": hidden}, sample, [far], SIZES)
    assert caught.value.symbol == name


def test_quotient_is_fitted_by_multiplying_with_its_divisor() -> None:
    result = fit_groups(
        lambda at: {"head.weight": (at["d"] // at["h"], at["d"])}, [{"d": [12, 24, 36, 48], "h": [1, 2, 3, 4]}]
    )
    d, h = symbol("d"), symbol("h")
    assert result.fits[PathGroup("head.weight")].columns == (d / h, d)


def test_equal_layers_form_a_group_without_differing_first() -> None:
    def read(at):
        layers = {f"layers.{n}.weight": ((at["d"] if n else at["V"]), at["d"]) for n in range(at["L"])}
        return {**layers, "output.weight": (at["V"],)}

    groups = fit_groups(read, [SIZES]).fits
    V, d, L = map(symbol, NAMES)
    assert {str(group): (fitted.repeats, fitted.columns) for group, fitted in groups.items()} == {
        "layers.0.weight": (1, (V, d)),
        "layers.1….weight": (L - 1, (d, d)),
        "output.weight": (1, (V,)),
    }


def test_layers_of_varying_size_are_fitted_by_their_sum() -> None:
    result = fit_groups(
        lambda at: {f"layers.{n}": (n * at["d"],) for n in range(at["L"])}, [{"d": SIZES["d"], "L": SIZES["L"]}]
    )
    (fitted,) = result.fits.values()
    d, L = symbol("d"), symbol("L")
    assert list(result.fits) == [PathGroup("layers.*", "…")] and fitted.columns == (d * L * (L - 1) / 2,)


def test_powers_of_two_are_refused_and_others_fitted() -> None:
    result = fit_groups(lambda at: {"a": (2 ** at["d"],), "b": (3 * at["d"],)}, [{"d": SIZES["d"]}])
    assert list(result.fits) == [PathGroup("b")]
    assert "no polynomial of d" in result.failures[PathGroup("a")]


def test_probe_sizes_must_be_buildable() -> None:
    first = next(choose_probe_sizes({"d": 64, "h": 4}, lambda at: at["d"] % at["h"] == 0, {}))
    assert all(width % heads == 0 for width in first["d"] for heads in first["h"])
    assert next(choose_probe_sizes({"d": 64}, lambda at: True, {"d": [5, 7, 9]})) == {"d": [5, 7, 9]}
    assert not list(choose_probe_sizes({"d": 64}, lambda at: False, {}))
    with pytest.raises(CountingError, match="no small sizes that were tried"):
        fit_groups(lambda at: {}, [])


def test_total_size_sums_products_of_shapes() -> None:
    assert total_size([(1, 2), (3, 4), ()]) == 2 + 12 + 1 and total_size([(5,), (6,)]) == 11


def test_cache_key_changes_with_every_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(list(cache.PACKAGE.glob(pattern)) for pattern in cache.SOURCES)
    monkeypatch.setattr(cache, "PACKAGE", tmp_path)
    files = [tmp_path / pattern.replace("**", "folder").replace("*", "some") for pattern in cache.SOURCES]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("one = 1\n")
    seen = {cache.source_hash()}
    for file in files:
        file.write_text("one = 2\n")
        seen.add(cache.source_hash())
    assert len(seen) == 1 + len(files)


@pytest.mark.parametrize(
    "module",
    [
        ".".join(path.relative_to(cache.PACKAGE).with_suffix("").parts)
        for path in sorted((cache.PACKAGE / "counting").rglob("*.py"))
        if ">>>" in path.read_text("utf-8")
    ],
)
def test_docstring_examples_run(module: str) -> None:
    results = doctest.testmod(import_module(f"lemma.{module}"))
    assert results.attempted and not results.failed


def test_coefficient_that_vanishes_at_the_lowest_sizes_is_fitted() -> None:
    B, D, d, h, L = map(symbol, ("B", "D", "d", "h", "L"))
    sizes = {**{name: list(range(2, 10)) for name in ("B", "D", "d")}, "h": [1, 2, 4], "L": [2, 3, 4, 5]}
    for hidden in (2 * B * D * (d + (2 * L - 1) * D), (h - 1) * d + D, (L - 2) * (h - 1) * d * B):
        fits = fit_polynomials(lambda at, hidden=hidden: {"it": int(hidden.at(at))}, sizes)
        assert fits["it"] == hidden
