"""Linear equations: exact solutions, contradictions, and rows that depend on others, compared with fractions."""

import random
from fractions import Fraction

import numpy as np
import pytest

from lemma.counting.linear import (
    PRIMES,
    IndependentRows,
    fits_samples,
    reconstruct_fraction,
    solve_coefficients,
    solve_modular,
)
from lemma.counting.polynomial import Polynomial, symbol


def test_fractions_are_reconstructed_from_residues() -> None:
    for fraction in (Fraction(3, 7), Fraction(-12_345, 64), Fraction(0), Fraction(1_000_003)):
        residues = [fraction.numerator * pow(fraction.denominator, -1, prime) % prime for prime in PRIMES]
        assert reconstruct_fraction(residues) == fraction


def test_each_right_hand_side_is_solved_or_contradicted() -> None:
    solvable, contradicted = solve_modular([[1, 1], [1, 2], [1, 3]], [[2, 3, 4], [2, 3, 5]], PRIMES[0])
    assert solvable == {0: 1, 1: 1} and contradicted is None
    assert solve_modular([[1, 2], [2, 4]], [[3, 6]], PRIMES[0]) == [{0: 3}]  # the last unknown is not needed


@pytest.mark.parametrize("seed", range(8))
def test_rank_of_random_rows_is_that_of_numpy(seed: int) -> None:
    source = np.random.default_rng(seed)
    matrix = source.integers(0, 4, (9, 3)) @ source.integers(0, 4, (3, 6))
    rows = IndependentRows(6)
    assert sum(rows.add(list(map(int, row))) for row in matrix) == np.linalg.matrix_rank(matrix)
    assert not rows.is_complete


@pytest.mark.parametrize("seed", range(8))
def test_hidden_coefficients_are_recovered_exactly(seed: int) -> None:
    source, basis = random.Random(seed), [(), (("d", 1),), (("T", 2), ("d", 1)), (("d", 2),), (("d", 1), ("h", -1))]
    hidden = Polynomial({monomial: Fraction(source.randint(-(10**8), 10**8), 2) for monomial in basis})
    samples = [
        {"d": 8 * source.randint(2, 9), "T": source.randint(2, 9), "h": source.choice([2, 4])} for _ in range(20)
    ]
    doubled = [int(2 * hidden.at(sizes)) for sizes in samples]
    wrong = [doubled[0] + 1, *doubled[1:]]
    assert solve_coefficients(basis, samples, [doubled, wrong]) == [2 * hidden, None]


def test_samples_are_compared_exactly() -> None:
    half = symbol("d") * (symbol("d") + 1) / 2
    assert fits_samples(half, [{"d": 3}, {"d": 10**9}], [6, (10**9 * (10**9 + 1)) // 2])
    assert not fits_samples(half, [{"d": 10**9}], [(10**9 * (10**9 + 1)) // 2 + 1])
