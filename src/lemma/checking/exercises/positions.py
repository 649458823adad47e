"""Exercises on position encodings: sinusoidal, rotary, ALiBi and learned."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from lemma.checking.check_values import normalize_name
from lemma.checking.exercises.base import ValueExercise
from lemma.checking.exercises.statements import Vector, expect, show, show_terms
from lemma.checking.expected_values import Array, ExpectedValue

MAX_WIDTH, MAX_LENGTH, MAX_POSITION = 256, 64, 10**6
_PE_NAME = re.compile(r"(?:pe|p)\(?(\d{1,6})(?:,(\d{1,3}))?\)?")


class PositionExercise(ValueExercise):
    """Position encodings computed by hand."""

    kind: ClassVar[str] = "position"
    first_field: ClassVar[str] = "scheme"
    renamed: ClassVar[Mapping[str, str]] = {"d_model": "width", "d": "width", "pos": "position", "num_heads": "heads"}

    scheme: Literal["sinusoidal", "rotary", "alibi", "learned"] = "sinusoidal"
    """Scheme of positions."""
    width: Annotated[int, Field(ge=1, le=10**6)] = 4
    """Width of the vectors, an even number; by default that of `vector`, or 4."""
    position: Annotated[int, Field(ge=-MAX_POSITION, le=MAX_POSITION)] = 1
    """Position of the vector, or of the query."""
    count_from: Literal[0, 1] = 0
    """Number of the first position."""
    base: Annotated[float, Field(gt=1, le=1e12)] = 10000.0
    """Base of the wavelengths."""
    pairing: Literal["neighbours", "halves"] = "neighbours"
    """Entries that share an angle: neighbours (1st and 2nd, 3rd and 4th), or halves (1st and d/2+1st)."""
    vector: Vector = ()
    """Vector that is rotated: the query."""
    key: Vector = ()
    """Key that is rotated too, for the score of query and key."""
    key_position: Annotated[int, Field(ge=-MAX_POSITION, le=MAX_POSITION)] = 0
    """Position of the key."""
    heads: Annotated[int, Field(ge=1, le=256)] = 8
    """Number of heads, for ALiBi."""
    head: Annotated[int, Field(ge=1, le=256)] = 1
    """Head whose biases are asked for, counted from 1."""
    length: Annotated[int, Field(ge=0, le=10**9)] = 0
    """Number of positions: of a learned table, or rows of a whole matrix of encodings or biases."""

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the fields, and other names of them."""
        return [*super().setting_names(), *cls.renamed]

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        """Raise an error for fields that do not fit each other."""
        if self.scheme == "learned":
            return self
        if self.length > MAX_LENGTH:
            raise ValueError(f"length = {self.length}: at most {MAX_LENGTH} rows are listed.")
        if self.vector and "width" in self.model_fields_set and self.width != len(self.vector):
            raise ValueError(f"width = {self.width}, but vector has {len(self.vector)} numbers. Leave out width.")
        if self.num_features % 2 or self.num_features > MAX_WIDTH:
            raise ValueError(f"width = {self.num_features}: an even number up to {MAX_WIDTH} is expected.")
        if self.key and len(self.key) != self.num_features:
            raise ValueError(f"key has {len(self.key)} numbers, but the query has {self.num_features}.")
        if self.scheme == "rotary" and self.key and not self.vector:
            raise ValueError("the query is missing. As in: vector=[1, 0] key=[0, 1]")
        if self.head > self.heads:
            raise ValueError(f"head = {self.head}: there are {self.heads} heads, counted from 1.")
        return self

    @property
    def num_features(self) -> int:
        """The width of the vectors."""
        return len(self.vector) or self.width

    @property
    def index(self) -> int:
        """The position counted from 0."""
        return self.position - self.count_from

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the angles and the encoding, the rotated vectors and their score, or the slopes and biases."""
        match self.scheme:
            case "sinusoidal":
                return self._expect_sinusoids()
            case "rotary":
                return self._expect_rotation()
            case "alibi":
                return self._expect_biases()
        count = self.length * self.width
        return [
            expect(
                "parameters num_parameters count",
                count,
                "trainable numbers of the table",
                "positions · width: one vector for each position",
                f"{self.length}·{self.width} = {show(count)}",
                {
                    "the width is left out": self.length,
                    "one vector is shared by all positions": self.width,
                    "positions and width are added, not multiplied": self.length + self.width,
                    "one position too many is counted": (self.length + 1) * self.width,
                    "one position too few is counted; the first has a vector, too": (self.length - 1) * self.width,
                    "a bias is added; a table of positions has none": self.length * self.width + self.width,
                    "the table is counted twice, as for queries and keys": 2 * count,
                },
            )
        ]

    def main_names(self) -> tuple[str, ...]:
        """Return the encoding, the rotated vector or score, the slopes or the bias row."""
        match self.scheme:
            case "sinusoidal":
                return ("PE",)
            case "rotary":
                return ("score",) if self.key else ("rotated",) if self.vector else ("angles",)
            case "alibi":
                asks_bias = {"position", "head", "length"} & self.model_fields_set
                return ("bias_row",) if asks_bias else ("slopes",)
        return ("parameters",)

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return the encoding of any position, as in PE(3), or an entry of it counted from 0, as in PE(3, 1)."""
        match = _PE_NAME.fullmatch(normalize_name(name))
        if self.scheme != "sinusoidal" or not match:
            return None
        position, entry = int(match[1]), match[2]
        if entry is not None and int(entry) >= self.width:
            return None
        value = self._expect_encoding(name, position, ())
        if entry is None:
            return value
        index = int(entry)
        mistakes = {text: array[index] for text, array in value.mistakes.items()}
        return expect([name], value.values[index], formula=value.formula, mistakes=mistakes)

    # Angles

    def _frequencies(self, factor: float = 2.0) -> Array:
        """Return the frequency of each pair: base^(−factor·i/d)."""
        pairs = np.arange(self.num_features // 2)
        return self.base ** (-factor * pairs / self.num_features)

    def _expect_angles(self) -> list[ExpectedValue]:
        """Return the frequencies of the pairs and their angles at the position."""
        width, frequencies = self.num_features, self._frequencies()
        counted_up = self.base ** (-2.0 * np.arange(1, width // 2 + 1) / width)
        wrong = {
            "the exponent is −i/d instead of −2i/d": self._frequencies(1),
            "the exponent is −4i/d: i counts pairs, 2i is the entry": self._frequencies(4),
            "pairs are counted from 1 instead of 0": counted_up,
            "the exponent has the wrong sign": 1 / frequencies,
            "the exponent lacks the division by d": self.base ** (-2.0 * np.arange(width // 2)),
            "the base is left out": np.ones(width // 2),
        }
        exponents = ", ".join(f"{show(self.base)}^(−{2 * pair}/{width})" for pair in range(min(width // 2, 4)))
        return [
            expect(
                "frequencies omega freqs theta inv_freq",
                frequencies,
                "frequency of each pair",
                "ω_i = base^(−2i/d), i = 0 … d/2 − 1",
                f"{exponents}{', …' if width > 8 else ''}",
                wrong,
            ),
            expect(
                "angles angle phi",
                self.index * frequencies,
                "angle of each pair, in radians",
                "angle_i = position · ω_i" + (", positions counted from 1: position − 1" if self.count_from else ""),
                f"{self.index}·{show(frequencies)}",
                {
                    **{text: self.index * array for text, array in wrong.items()},
                    "the position is off by one: one too large": (self.index + 1) * frequencies,
                    "the position is off by one: one too small": (self.index - 1) * frequencies,
                    "the angles are in degrees, not radians": np.degrees(self.index * frequencies),
                    "the position is left out": frequencies,
                },
            ),
        ]

    def _wrong_angles(self, index: int) -> dict[str, Array]:
        """Return the angles at a position, counted from 0, that mistakes give."""
        frequencies, width = self._frequencies(), self.num_features
        ones = np.ones_like(frequencies)
        return {
            "the angles are taken in degrees; they are in radians": np.radians(index * frequencies),
            "the position is off by one: one too large": (index + 1) * frequencies,
            "the position is off by one: one too small": (index - 1) * frequencies,
            "the base is left out: every pair has the frequency 1": index * ones,
            "the exponent is i/d instead of 2i/d for pair i": index * self._frequencies(1),
            "the exponent is 4i/d: i counts pairs, 2i is the entry": index * self._frequencies(4),
            "the position is multiplied by base^(2i/d) instead of divided": index / frequencies,
            "pairs are counted from 1 instead of 0": index * self.base ** (-2.0 * np.arange(1, width // 2 + 1) / width),
            "the position is left out": frequencies,
        }

    # Sinusoidal

    def _join(self, first: Array, second: Array, pairing: str = "") -> Array:
        """Return the entries of pairs as a vector: in turns, or all first entries before all second ones."""
        if (pairing or self.pairing) == "halves":
            return np.concatenate([first, second], axis=-1)
        return np.stack([first, second], axis=-1).reshape(*first.shape[:-1], -1)

    def _expect_encoding(self, name: str, position: int, aliases: Sequence[str]) -> ExpectedValue:
        """Return the encoding of a position, as the statement counts positions."""
        index = position - self.count_from
        angles = index * self._frequencies()
        encoding = self._join(np.sin(angles), np.cos(angles))
        other = "neighbours" if self.pairing == "halves" else "halves"
        texts = {
            "halves": "all sines come first, then all cosines; here they alternate",
            "neighbours": "sines and cosines alternate; here all sines come first",
        }
        width = self.num_features
        entries = np.arange(width)
        mixed = [index * self.base ** (-factor * entries / width) for factor in (1.0, 2.0)]
        is_sine = np.array(self._join(np.ones(width // 2), np.zeros(width // 2)), dtype=bool)
        wrong = {
            "cosine comes before sine": self._join(np.cos(angles), np.sin(angles)),
            **{text: self._join(np.sin(a), np.cos(a)) for text, a in self._wrong_angles(index).items()},
            texts[other]: self._join(np.sin(angles), np.cos(angles), other),
            "each entry has its own frequency (exponent j/d for entry j); a sine and its cosine share one": np.where(
                is_sine, np.sin(mixed[0]), np.cos(mixed[0])
            ),
            "each entry has its own frequency (exponent 2j/d for entry j); a sine and its cosine share one": np.where(
                is_sine, np.sin(mixed[1]), np.cos(mixed[1])
            ),
            "only sines are used": self._join(np.sin(angles), np.sin(angles)),
            "only cosines are used": self._join(np.cos(angles), np.cos(angles)),
            "the angles themselves are given, without sine and cosine": self._join(angles, angles),
        }
        work = ", ".join(f"sin({show(a)}) = {show(np.sin(a))}, cos({show(a)}) = {show(np.cos(a))}" for a in angles[:4])
        order = "in turns" if self.pairing == "neighbours" else "all sines, then all cosines"
        return expect(
            [name, *aliases],
            encoding,
            f"encoding: sine and cosine, {order}",
            "PE(pos, 2i) = sin(pos·ω_i), PE(pos, 2i+1) = cos(pos·ω_i)",
            work + (", …" if len(angles) > 4 else ""),
            wrong,
        )

    def _expect_sinusoids(self) -> list[ExpectedValue]:
        """Return the angles, the encoding of the position and, with `length`, that of the first positions."""
        values = self._expect_angles()
        if self.length:
            angles = np.arange(self.length)[:, None] * self._frequencies()
            shifted = angles + self._frequencies()
            matrix = self._join(np.sin(angles), np.cos(angles))
            mistakes = {
                "positions are counted from 1 instead of 0": self._join(np.sin(shifted), np.cos(shifted)),
                "cosine comes before sine": self._join(np.cos(angles), np.sin(angles)),
                "the angles are taken in degrees; they are in radians": self._join(
                    np.sin(np.radians(angles)), np.cos(np.radians(angles))
                ),
            }
            formula = "row pos is PE(pos), from the first position"
            values.append(expect("table matrix P", matrix, "encodings of all positions", formula, "", mistakes))
        frequencies = self._frequencies()
        wavelengths = expect(
            "wavelengths lambda",
            2 * np.pi / frequencies,
            "positions until a pair repeats",
            "λ_i = 2π / ω_i = 2π·base^(2i/d)",
            f"2π / {show(frequencies[:4])}",
            {
                "2π is left out": 1 / frequencies,
                "π instead of 2π": np.pi / frequencies,
                "2π is multiplied by the frequency instead of divided": 2 * np.pi * frequencies,
            },
        )
        return [*values, wavelengths, self._expect_encoding("PE", self.position, ("p", "encoding", "positional"))]

    # Rotary

    def _rotate(self, vector: Array, angles: Array, pairing: str = "", wrong: str = "") -> Array:
        """Return a vector whose pairs are rotated by angles; `wrong` is a mistake in the rotation."""
        half = len(vector) // 2
        is_halves = (pairing or self.pairing) == "halves"
        x, y = (vector[:half], vector[half:]) if is_halves else (vector[0::2], vector[1::2])
        cos, sin = np.cos(angles), np.sin(angles)
        if wrong == "exchanged":
            cos, sin = sin, cos
        signs = {"plus": (1, 1), "minus": (-1, -1)}.get(wrong, (-1, 1))
        return self._join(x * cos + signs[0] * y * sin, y * cos + signs[1] * x * sin, pairing)

    def _expect_rotated(self, names: str, vector: Array, position: int, label: str) -> ExpectedValue:
        """Return a vector that is rotated at a position, as the statement counts positions."""
        index = position - self.count_from
        angles = index * self._frequencies()
        other = "neighbours" if self.pairing == "halves" else "halves"
        pairs = {"neighbours": "neighbouring entries", "halves": "entries of both halves"}
        wrong = {
            "the rotation goes in the other direction": self._rotate(vector, -angles),
            f"the pairs are {pairs[other]}; here they are {pairs[self.pairing]}": self._rotate(vector, angles, other),
            **{text: self._rotate(vector, wrong) for text, wrong in self._wrong_angles(index).items()},
            "sine and cosine are exchanged": self._rotate(vector, angles, wrong="exchanged"),
            "both sines have the sign +; the first entry is x·cos − y·sin": self._rotate(vector, angles, wrong="plus"),
            "both sines have the sign −; the second entry is x·sin + y·cos": self._rotate(
                vector, angles, wrong="minus"
            ),
            "the encoding is added, as for sinusoids, instead of rotating": vector
            + self._join(np.sin(angles), np.cos(angles)),
            "only the cosines are used": vector * self._join(np.cos(angles), np.cos(angles)),
            "the vector is not rotated": vector,
        }
        half = len(vector) // 2
        is_halves = self.pairing == "halves"
        first = [(i, i + half) if is_halves else (2 * i, 2 * i + 1) for i in range(min(half, 3))]
        work = "; ".join(
            f"({show(vector[i])}, {show(vector[j])}) by {show(angles[n])}: "
            f"{show(vector[i])}·{show(np.cos(angles[n]))} − {_factor(vector[j])}·{_factor(np.sin(angles[n]))}, "
            f"{show(vector[i])}·{show(np.sin(angles[n]))} + {_factor(vector[j])}·{_factor(np.cos(angles[n]))}"
            for n, (i, j) in enumerate(first)
        )
        return expect(
            names,
            self._rotate(vector, angles),
            f"{label} with its pairs rotated by position·ω_i",
            "(x, y) → (x cos φ − y sin φ, x sin φ + y cos φ) with φ = position·ω_i",
            work + ("; …" if half > 3 else ""),
            wrong,
        )

    def _expect_rotation(self) -> list[ExpectedValue]:
        """Return the angles, the rotated vectors and the score of query and key."""
        values = self._expect_angles()
        if not self.vector:
            return values
        query = np.array(self.vector)
        values.append(
            self._expect_rotated("rotated rotated_query q_rot q' q_m RoPE output", query, self.position, "the vector")
        )
        if not self.key:
            return values
        key, frequencies = np.array(self.key), self._frequencies()
        values.append(self._expect_rotated("rotated_key k_rot k' k_n", key, self.key_position, "the key"))
        rotated_query, distance = values[-2].values, self.position - self.key_position
        key_index = self.key_position - self.count_from

        def score_at(positions: float, pairing: str = "") -> float:
            return float(self._rotate(query, positions * frequencies, pairing) @ key)

        other = "neighbours" if self.pairing == "halves" else "halves"
        score = float(rotated_query @ values[-1].values)
        mistakes: dict[str, Any] = {
            "neither query nor key is rotated": float(query @ key),
            "only the query is rotated": float(rotated_query @ key),
            "only the key is rotated": float(query @ values[-1].values),
            "query and key are rotated in different directions": score_at(self.index + key_index),
            "the distance has the wrong sign, or one rotation has the wrong direction": score_at(-distance),
            "the pairs are those of the other pairing": score_at(distance, other),
            "the angles are taken in degrees; they are in radians": float(
                self._rotate(query, np.radians(distance * frequencies)) @ key
            ),
            "the base is left out: every pair has the frequency 1": float(
                self._rotate(query, distance * np.ones_like(frequencies)) @ key
            ),
            "the distance is off by one: one too large": score_at(distance + 1),
            "the distance is off by one: one too small": score_at(distance - 1),
        }
        root = f"the score is divided by √d = √{self.num_features}; here it is not scaled"
        mistakes[root] = score / np.sqrt(self.num_features)
        work = f"{show(rotated_query)} · {show(values[-1].values)} = {show_terms(rotated_query * values[-1].values)}"
        values.append(expect("distance relative_position m-n", distance, "position of the query − of the key"))
        formula = "(R_m q)·(R_n k): depends on m − n alone"
        values.append(expect("score dot q·k", score, "inner product after rotation", formula, work, mistakes))
        return values

    # ALiBi

    def _slopes(self) -> Array:
        """Return the slopes of all heads, of Press et al. 2022, also where their number is not a power of two."""
        power = 1 << (self.heads.bit_length() - 1)
        slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
        further = 2.0 ** (-4 * np.arange(1, 2 * power + 1, 2) / power)  # every second one of twice as many heads
        return np.concatenate([slopes, further[: self.heads - power]])

    def _expect_biases(self) -> list[ExpectedValue]:
        """Return the slopes of the heads, and the biases of a query in one head."""
        slopes, heads = self._slopes(), self.heads
        numbers, power = np.arange(1, heads + 1), 1 << (heads.bit_length() - 1)
        unshifted = 2.0 ** (-8 * numbers / heads)
        is_power = power == heads
        formula = "m_h = 2^(−8h/H) for h = 1 … H"
        if not is_power:
            formula = f"H = {heads} is no power of two: the slopes of {power} heads, then every second of {2 * power}"
        slope = slopes[self.head - 1]
        values = [
            expect(
                "slopes m",
                slopes,
                "slope of each head",
                formula,
                f"2^(−8/{power}) = {show(2.0 ** (-8 / power))}, each further one times the same"
                + ("" if is_power else f"; then {show(slopes[power:][:4])} from {2 * power} heads"),
                {
                    "heads are counted from 0 instead of 1": 2.0 ** (-8 * (numbers - 1) / heads),
                    "the exponent −8h/H is taken although H is no power of two": unshifted,
                    "the exponent is −h instead of −8h/H": 2.0**-numbers,
                    "the exponent is −h/H: the 8 is left out": 2.0 ** (-numbers / heads),
                    "the sign of the exponent is wrong": 2.0 ** (8 * numbers / heads),
                    "base e instead of 2": np.exp(-8 * numbers / heads),
                    "the exponent is −H·h/8: 8 and H are exchanged": 2.0 ** (-heads * numbers / 8),
                },
            ),
            expect(
                f"slope m{self.head} m_h", slope, f"slope of head {self.head}", formula, f"entry {self.head} of slopes"
            ),
        ]
        length = self.length or self.index + 1
        if not 1 <= length <= MAX_LENGTH:
            return values
        row = self.index if "position" in self.model_fields_set or not self.length else length - 1
        keys = np.arange(row + 1)
        distances = row - keys
        values.append(
            expect(
                "bias_row bias biases b",
                -slope * distances,
                f"bias of query {row + self.count_from} for each key up to it, head {self.head}",
                "−m_h·(i − j) for keys j ≤ i",
                f"−{show(slope)}·{show(distances)}",
                {
                    "the bias is −m·j: it is 0 at the first key instead of at the query": -slope * keys,
                    "m·j is added instead of −m·(i − j), which is the same only after the softmax": slope * keys,
                    "the distance to the query itself is taken as 1; it is 0": -slope * (distances + 1),
                    "the slope of the next head is taken": -slopes[min(self.head, heads - 1)] * distances,
                    "the slope of the head before is taken": -slopes[max(self.head - 2, 0)] * distances,
                    "the slope is left out": -1.0 * distances,
                    "the distance is squared": -slope * distances**2,
                },
            )
        )
        if self.length:
            offsets = np.arange(length)[:, None] - np.arange(length)
            values.append(
                expect(
                    "bias_matrix B",
                    -slope * np.maximum(offsets, 0),
                    "biases of all queries (rows) and keys; 0 where masked",
                    "−m_h·max(i − j, 0)",
                    "",
                    {
                        "keys after the query have a bias, too; they are masked (write 0)": -slope * np.abs(offsets),
                    },
                )
            )
        return values


def _factor(value: float) -> str:
    """Return a number as a factor, in brackets if it is negative."""
    text = show(value)
    return f"({text})" if text.startswith("−") else text
