"""From printed totals back to sizes, compared with trying every combination."""

from itertools import product
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lemma
from lemma.counting.count import count
from lemma.counting.polynomial import Polynomial, symbol
from lemma.counting.solve import (
    Solutions,
    integer_roots,
    read_range,
    read_total,
    solve,
    solve_for,
    to_equation,
    unroundness,
)
from lemma.counting.subject import resolve_subject
from lemma.errors import InputError

V, d, d_e, L, h, N = map(symbol, ["V", "d", "d_e", "L", "h", "N"])
SMALL = {name: range(1, 13) for name in ("x", "y", "z")}
COEFFICIENTS = st.integers(-4, 9)
MONOMIALS = st.tuples(*[st.integers(-1, 2)] * 3).map(
    lambda powers: tuple((name, power) for name, power in zip("xyz", powers, strict=True) if power)
)
POLYNOMIALS = st.dictionaries(MONOMIALS, COEFFICIENTS, min_size=2, max_size=5).map(Polynomial)


def solution_tuples(solutions: Solutions) -> set[tuple[int, ...]]:
    assert solutions.number == len(solutions.solutions)
    return {tuple(solution.values()) for solution in solutions.solutions}


def brute_force(
    polynomial: Polynomial, names: list[str], totals: list[tuple[int, dict[str, int]]]
) -> set[tuple[int, ...]]:
    return {
        values
        for values in product(*(SMALL[name] for name in names))
        if all(polynomial.at({**dict(zip(names, values, strict=True)), **custom}) == total for total, custom in totals)
    }


@settings(deadline=None, max_examples=80)
@given(POLYNOMIALS, st.tuples(*[st.integers(1, 12)] * 3))
def test_solutions_of_one_total_match_brute_force(polynomial: Polynomial, at: tuple[int, int, int]) -> None:
    total = polynomial.at(dict(zip("xyz", at, strict=True)))
    names = sorted(polynomial.symbols)
    if total.denominator > 1 or total < 1 or not names:
        return
    result = solve(polynomial, names, [(int(total), {})], {}, {name: SMALL[name] for name in names}, limit=10_000)
    assert solution_tuples(result) == brute_force(polynomial, names, [(int(total), {})])


@settings(deadline=None, max_examples=100)
@given(POLYNOMIALS, st.tuples(*[st.integers(1, 12)] * 2), st.integers(1, 6))
def test_solutions_of_two_totals_match_brute_force(polynomial: Polynomial, at: tuple[int, int], z: int) -> None:
    totals = [(polynomial.at({"x": at[0], "y": at[1], "z": custom}), {"z": custom}) for custom in (z, z + 2)]
    names = sorted(polynomial.symbols - {"z"})
    if any(total.denominator > 1 or total < 1 for total, _ in totals) or not names:
        return
    request = [(int(total), custom) for total, custom in totals]
    result = solve(polynomial, names, request, {"z": 1}, {name: SMALL[name] for name in names}, limit=10_000)
    assert solution_tuples(result) == brute_force(polynomial, names, request)


@given(st.lists(st.integers(-30, 60), min_size=1, max_size=4), st.integers(-9, 9).filter(bool))
def test_integer_roots_match_the_constructed_polynomial(made_of: list[int], scale: int) -> None:
    x = symbol("x")
    left = prod((x - root for root in made_of), start=x**2 + 1) * scale
    assert integer_roots(to_equation(left, ["x"]), 0, range(-20, 41)) == sorted(
        {root for root in made_of if -20 <= root <= 40}
    )


def test_solutions_respect_the_step_of_a_range() -> None:
    result = solve(V * d, ["V", "d"], [(640, {})], {}, {"d": range(64, 513, 64)})
    assert solution_tuples(result) == {(10, 64), (5, 128), (2, 320)}


@pytest.fixture(scope="module")
def table_a5():
    subject = resolve_subject("table-a5")
    return subject, count(subject, ["parameters"]).quantities["parameters"]


def test_table_a5_vocabulary_is_solved_from_one_total(table_a5) -> None:
    result = solve_for(*table_a5, ["V", "d_e"], [read_total("9,721,596")])
    # the equation is (V + 512)(d_e + 513) = n, so that its solutions are pairs of divisors
    n = 9_721_596 - 2 * 2_629_632 - 512 + 512 * 513
    pairs = {(n // f - 512, f - 513) for f in range(514, n // 513) if n % f == 0 and n // f > 512}
    assert solution_tuples(result) == pairs
    assert result.solutions[0] == {"V": 7676, "d_e": 64}


def test_table_a5_width_is_solved_from_both_totals(table_a5) -> None:
    totals = [read_total("L=2:9721596"), read_total("L=4:14980860")]
    result = solve_for(*table_a5, ["V", "d_e", "d"], totals)
    assert result.solutions[0] == {"V": 7676, "d_e": 64, "d": 512}
    assert {solution["d"] for solution in result.solutions} == {512}


def test_gpt2_sizes_are_solved_from_the_printed_total() -> None:
    pytest.importorskip("transformers")
    subject = resolve_subject("gpt2")
    parameters = count(subject, ["parameters"]).quantities["parameters"]
    result = solve_for(subject, parameters, ["d", "L"], [(124_439_808, {})])
    assert result.is_unique and result.solutions == ({"d": 768, "L": 12},)
    assert solve_for(subject, parameters, ["V", "d", "L"], [(124_439_808, {})]).solutions[0]["V"] == 50_257


def test_solving_updates_dependent_sizes_and_skips_unbuildable_ones() -> None:
    subject = resolve_subject("decoder", {"V": 300, "h": 4})
    parameters = count(subject, ["parameters"]).quantities["parameters"]
    sizes = {**subject.symbols, "d": 24, "d_h": 24, "d_ff": 96}
    total = sum(parameter.numel() for parameter in subject.build(sizes).parameters())
    assert {"d": 24} in solve_for(subject, parameters, ["d"], [(total, {})]).solutions
    odd = parameters.polynomial.at({**subject.symbols, "d": 26, "d_h": 26, "d_ff": 104})
    rejected = solve_for(subject, parameters, ["d"], [(int(odd), {})])
    assert (rejected.number, rejected.tried, rejected.solutions) == (1, 1, ())
    assert "cannot be built" in str(rejected)


def test_bound_that_holds_at_the_end_of_the_range_says_so() -> None:
    ended: Any = lemma.count.solve("decoder", "parameters <= 1B for L")
    assert ended.size == 200 and ended.is_at_end
    assert "The search ended at L = 200. For other values set --within L=1..2000." in str(ended)
    inside: Any = lemma.count.solve("decoder", "parameters <= 1M for L")
    assert inside.size is not None and not inside.is_at_end and "--within" not in str(inside)
    assert "--within L=1..2000" in str(lemma.count.solve("decoder", "parameters >= 1B for L"))


def test_solutions_with_round_numbers_come_first() -> None:
    assert unroundness(512) == unroundness(1000) == 0 < unroundness(768) < unroundness(500) < unroundness(509)
    result = solve(V * d, ["V", "d"], [(50_257 * 512, {})], {})
    assert result.solutions[0] == {"V": 50_257, "d": 512}


def test_summary_reports_one_several_or_no_solutions() -> None:
    assert "The only solution" in str(solve(V + d, ["V"], [(12, {})], {"d": 8}))
    assert "No whole numbers V give that within V 1…1,000,000." in str(solve(V * d, ["V"], [(13, {})], {"d": 8}))
    many = solve(V * d, ["V", "d"], [(4096, {})], {}, limit=3)
    assert many.number == 13 and len(many.solutions) == 3
    assert "13 assignments solve the equation" in str(many) and "The 3 roundest:" in " ".join(str(many).split())
    assert not many.is_unique


def test_oversized_search_space_is_refused_with_its_ranges() -> None:
    with pytest.raises(InputError, match=r"too many combinations.*N 2…1,000.*more than 5,000"):
        solve(V * d + d_e * L + N, ["V", "d", "d_e", "L", "N"], [(1_000_003, {})], {}, max_tried=5_000)


@pytest.mark.parametrize(
    ("unknown", "totals", "known", "ranges", "message"),
    [
        (["h"], [(8, {})], {"V": 2, "d": 2, "h": 1}, {}, "does not depend on h"),
        (["v"], [(8, {})], {"d": 2}, {}, "Did you mean 'V'|Choices: V, d"),
        ([], [(8, {})], {"V": 1, "d": 2}, {}, "nothing to solve for"),
        (["V"], [], {"d": 2}, {}, "no total"),
        (["V"], [(0, {})], {"d": 2}, {}, "above 0"),
        (["V"], [(8, {"V": 3})], {"d": 2}, {}, "V is given a value and asked for"),
        (["V"], [(8, {"q": 3})], {"d": 2}, {}, "unknown symbol 'q'"),
        (["V"], [(8, {})], {}, {}, "d has no value"),
        (["V"], [(8, {})], {"d": 2}, {"d": range(1, 3)}, "range: unknown symbol 'd'"),
        (["V"], [(8, {})], {"d": 2}, {"V": range(3)}, "none below 1"),
    ],
)
def test_unanswerable_equations_are_refused(unknown, totals, known, ranges, message) -> None:
    with pytest.raises(InputError, match=message):
        solve(V * d, unknown, totals, known, ranges)


@pytest.mark.parametrize("text", ["", "L=2", "L=:5", "0", "1.5", "-3", "9" * 50, "L=2:x", "1,2", "=3:5"])
def test_invalid_totals_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="total"):
        read_total(text)


@pytest.mark.parametrize("text", ["V", "V=5", "V=9..2", "V=1..2..3..4", "V=1..2..0", "V=a..b", "=1..4"])
def test_invalid_ranges_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="range"):
        read_range(text)


def test_solutions_render_in_every_format() -> None:
    result = solve(V * d, ["V"], [(16, {})], {"d": 8})
    assert result.to_dict() == {
        "unknown": ["V"],
        "totals": [{"total": 16, "known": {"d": 8}}],
        "ranges": {"V": [1, 1_000_000, 1]},
        "number": 1,
        "tried": 0,
        "solutions": [{"V": 2}],
    }
    assert "<td>2</td>" in result._repr_html_() and "16 at d=8" in result._repr_html_()
