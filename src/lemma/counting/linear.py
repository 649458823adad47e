"""Systems of linear equations for the coefficients of polynomials, solved exactly by residues modulo two primes."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from lemma.counting.polynomial import Monomial, Polynomial

Sizes = Mapping[str, int]

PRIMES = (2**31 - 1, 2**31 - 19)  # a product of two residues fits into 64 bits


def evaluate_monomial(monomial: Monomial, sizes: Sizes, prime: int = PRIMES[0]) -> int:
    """Return the value of a monomial at these sizes modulo a prime."""
    value = 1
    for name, power in monomial:
        value = value * pow(sizes[name], power, prime) % prime
    return value


class IndependentRows:
    """Rows of a matrix that are linearly independent, with their echelon form modulo a prime."""

    def __init__(self, num_columns: int) -> None:
        self._table = np.zeros((0, num_columns), dtype=np.int64)
        self._pivots: list[int] = []

    @property
    def is_complete(self) -> bool:
        """Return whether there are as many rows as columns."""
        return len(self._pivots) == self._table.shape[1]

    def add(self, values: Sequence[int]) -> bool:
        """Add a row if it is independent of those before; return whether it is."""
        prime = PRIMES[0]
        row = np.array([value % prime for value in values], dtype=np.int64)
        for pivot, earlier in zip(self._pivots, self._table, strict=True):
            if row[pivot]:
                row = (row - row[pivot] * earlier) % prime
        if not row.any():
            return False
        pivot = int(np.flatnonzero(row)[0])
        self._table = np.vstack([self._table, row * pow(int(row[pivot]), -1, prime) % prime])
        self._pivots.append(pivot)
        return True


def solve_modular(
    rows: Sequence[Sequence[int]], rights: Sequence[Sequence[int]], prime: int
) -> list[dict[int, int] | None]:
    """Solve `rows` · x = right modulo a prime for each right-hand side, using few of the last unknowns.

    A solution has the unknowns that are not 0, by index; it is None if the equations contradict each other.
    """
    columns = [*zip(*rows, strict=True), *rights]
    table = np.array([[value % prime for value in column] for column in columns], dtype=np.int64).T.copy()
    num_unknowns = table.shape[1] - len(rights)
    pivots: list[int] = []
    for column in range(num_unknowns):
        row = len(pivots)
        nonzero = np.flatnonzero(table[row:, column])
        if not len(nonzero):
            continue
        table[[row, row + nonzero[0]]] = table[[row + nonzero[0], row]]
        table[row] = table[row] * pow(int(table[row, column]), -1, prime) % prime
        factors = table[:, column].copy()
        factors[row] = 0
        table = (table - factors[:, None] * table[row] % prime) % prime
        pivots.append(column)
        if len(pivots) == len(table):
            break
    solutions: list[dict[int, int] | None] = []
    for right in range(num_unknowns, table.shape[1]):
        is_solved = not table[len(pivots) :, right].any()
        solution = {column: int(table[row, right]) for row, column in enumerate(pivots) if table[row, right]}
        solutions.append(solution if is_solved else None)
    return solutions


def reconstruct_fraction(residues: Sequence[int]) -> Fraction:
    """Return the fraction with small numerator and denominator that has these residues modulo `PRIMES` (Wang 1981)."""
    p, q = PRIMES
    modulus = p * q
    number = (residues[0] + p * ((residues[1] - residues[0]) * pow(p, -1, q) % q)) % modulus
    previous, current = (modulus, 0), (number, 1)
    while current[0] * current[0] * 2 > modulus:
        quotient = previous[0] // current[0]
        previous, current = current, (previous[0] - quotient * current[0], previous[1] - quotient * current[1])
    return Fraction(current[0], current[1]) if current[1] else Fraction(0)


def solve_coefficients(
    basis: Sequence[Monomial], samples: Sequence[Sizes], rights: Sequence[Sequence[int]]
) -> list[Polynomial | None]:
    """Return for each list of amounts the polynomial with monomials of `basis` that takes these amounts at `samples`.

    The result is None where there is none. If several are possible, the last monomials are avoided.
    """
    residues: list[list[dict[int, int] | None]] = []
    for prime in PRIMES:
        rows = [[evaluate_monomial(monomial, sizes, prime) for monomial in basis] for sizes in samples]
        residues.append(solve_modular(rows, rights, prime))
    polynomials: list[Polynomial | None] = []
    for first, second, amounts in zip(*residues, rights, strict=True):
        polynomials.append(None)
        if first is None or second is None:
            continue
        coefficients = {
            basis[index]: reconstruct_fraction([first.get(index, 0), second.get(index, 0)])
            for index in first.keys() | second.keys()
        }
        polynomial = Polynomial(coefficients)
        if fits_samples(polynomial, samples, amounts):
            polynomials[-1] = polynomial
    return polynomials


def fits_samples(polynomial: Polynomial, samples: Sequence[Sizes], amounts: Sequence[int]) -> bool:
    """Return whether a polynomial takes these amounts at all samples."""
    terms = polynomial.terms.items()
    denominator = lcm(*(number.denominator for _, number in terms))
    # integers are faster than fractions
    whole: list[tuple[Monomial, int | Fraction]] = [(monomial, int(number * denominator)) for monomial, number in terms]
    for sizes, amount in zip(samples, amounts, strict=True):
        total: int | Fraction = 0
        for monomial, factor in whole:
            for name, power in monomial:
                factor *= sizes[name] ** power if power > 0 else Fraction(1, sizes[name] ** -power)
            total += factor
        if total != amount * denominator:
            return False
    return True
