"""Exercises on vectors and matrices: products, norms, cosines, SVD, TF-IDF, co-occurrence."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import log
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from lemma.checking.check_values import AnswerKey, ValueClaim
from lemma.checking.exercises.matrix_values import Arrays, describe_steps, evaluate, evaluate_mistakes, parse_expression
from lemma.checking.exercises.statements import (
    ConventionExercise,
    Sentences,
    StatementText,
    Words,
    expect,
    read_words,
    show,
    show_terms,
)
from lemma.checking.expected_values import Array, ExpectedValue
from lemma.errors import InputError

MAX_TERMS, MAX_DOCUMENTS, MAX_TOKENS = 40, 20, 400
LOGS = {"e": 1.0, "2": log(2), "10": log(10)}
FREEDOMS = ("sign", "scale", "order", "transposition")


def read_freedoms(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    """Return what does not matter in an answer: sign, scale, order or transposition."""
    names = tuple({"transpose": "transposition"}.get(name, name) for name in read_words(value, info))
    for name in names:
        if name not in FREEDOMS:
            raise ValueError(f"up_to: '{name}' is unknown. Choices: {', '.join(FREEDOMS)}.")
    return names


class VectorExercise(ConventionExercise):
    """Vectors and matrices computed by hand."""

    kind: ClassVar[str] = "vector"
    first_field: ClassVar[str] = "operation"
    renamed: ClassVar[Mapping[str, str]] = {"expr": "expression", "docs": "documents", "corpus": "documents"}

    operation: Literal[
        "expression",
        "cosine",
        "norm",
        "distance",
        "projection",
        "mean",
        "svd",
        "eigen",
        "tf-idf",
        "co-occurrence",
        "pmi",
        "ppmi",
        "one-hot",
    ] = "expression"
    """What is computed."""
    given: Arrays = Field({})
    """Given numbers, vectors and matrices, as in "A = [[1, 2], [3, 4]], x = [1, 0]"."""
    expression: StatementText = ""
    """Expression of the given values: + - * / @ (product), A.T, softmax, sum, sqrt, exp and so on."""
    symbol: str = "result"
    """Name of the result in an answer."""
    vectors: Literal["", "column", "row"] = ""
    """Vectors as columns or rows in the expression; by default as the shapes fit."""
    up_to: Annotated[tuple[str, ...], BeforeValidator(read_freedoms)] = ()
    """What does not matter: sign, scale, order, transposition."""
    documents: Sentences = ()
    """Documents for TF-IDF or sentences for co-occurrence, with " / " between them."""
    window: Annotated[int, Field(ge=1, le=50)] = 1
    """Words on each side that co-occur."""
    tf_scheme: Literal["", "raw", "relative", "log", "log1p"] = ""
    """Term frequency: count, count / length, 1 + log(count), or log(1 + count); by default any."""
    idf_scheme: Literal["", "plain", "smooth", "plus-one"] = ""
    """Inverse document frequency: log(N/df), log((1+N)/(1+df)) + 1, or log(N/df) + 1; by default any."""
    log_base: Literal["", "e", "2", "10"] = ""
    """Base of logarithms; by default any."""
    vocabulary: Words = ()
    """Words of one-hot vectors and of matrices, in their order; by default as they occur."""
    word: str = ""
    """Word whose one-hot vector is asked for."""

    @classmethod
    def setting_names(cls) -> list[str]:
        """Return the names of the fields, and other names of them."""
        return [*super().setting_names(), *cls.renamed]

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, data: Any) -> Any:
        """Return the settings with texts that TOML reads as numbers."""
        if isinstance(data, dict):
            data = dict(data)
            for name in ("log_base", "word", "symbol"):
                if name in data:
                    data[name] = str(data[name])
        return data

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        """Raise an error for fields that are missing or do not fit each other."""
        count = {"cosine": 2, "distance": 2, "projection": 2, "norm": 1, "mean": 1, "svd": 1, "eigen": 1}
        count |= {"pmi": 1, "ppmi": 1}
        operation = self.operation
        if operation == "expression":
            if not self.expression:
                raise ValueError(
                    "expression is needed, as in expression='A @ x' given='A = [[1, 2], [3, 4]], x = [1, 0]'."
                )
            try:
                result = self._evaluate()
            except InputError as error:
                raise ValueError(f"expression: {error}") from None
            if not np.isfinite(result).all() or result.ndim > 2:
                raise ValueError("expression: its value is infinite or has more than two axes.")
        elif operation in ("tf-idf", "co-occurrence"):
            tokens = [sentence.split() for sentence in self.documents]
            if not tokens:
                raise ValueError(f"{operation}: documents are needed, as in documents='the cat / the dog'.")
            if len(tokens) > MAX_DOCUMENTS or sum(map(len, tokens)) > MAX_TOKENS or len(self.terms()) > MAX_TERMS:
                raise ValueError(f"at most {MAX_DOCUMENTS} documents with {MAX_TERMS} different words are worked out.")
        elif operation == "one-hot":
            if self.word not in self.vocabulary:
                raise ValueError("one-hot: vocabulary and one of its words are needed, as in vocabulary='a b' word=b.")
        elif len(self.given) < count[operation]:
            raise ValueError(
                f"{operation}: {count[operation]} given values are needed, as in given='a = [1, 2], b = [2, 1]'."
            )
        else:
            arrays = [np.array(value) for value in self.given.values()]
            if operation in ("cosine", "distance", "projection") and (
                arrays[0].ndim != 1 or arrays[0].shape != arrays[1].shape
            ):
                raise ValueError(f"{operation}: two vectors of the same length are expected.")
            if operation in ("svd", "eigen", "pmi", "ppmi") and (arrays[0].ndim != 2 or max(arrays[0].shape) > 8):
                raise ValueError(f"{operation}: a matrix of at most 8 rows and columns is expected.")
            if operation == "eigen" and arrays[0].shape[0] != arrays[0].shape[1]:
                raise ValueError("eigen: a square matrix is expected.")
            if operation in ("pmi", "ppmi") and (
                arrays[0].min() < 0 or not arrays[0].sum(0).all() or not arrays[0].sum(1).all()
            ):
                raise ValueError(f"{operation}: counts are expected, with no row or column of zeros.")
            if operation == "eigen" and np.abs(np.linalg.eigvals(arrays[0]).imag).max() > 1e-9:
                raise ValueError("eigen: the eigenvalues are not real.")
            if operation in ("cosine", "projection") and not (np.any(arrays[0]) and np.any(arrays[1])):
                raise ValueError(f"{operation}: a vector is 0.")
        return self

    def _evaluate(self) -> Array:
        """Return the value of the expression."""
        return evaluate(parse_expression(self.expression), self.given, self.vectors)

    def expected_values(self) -> Sequence[ExpectedValue]:
        """Return the steps and the result of the operation."""
        return self._expect(1)

    def answer_keys(self, claims: Sequence[ValueClaim]) -> Iterable[AnswerKey]:
        """Yield the right answers: one for each choice of the signs of singular vectors."""
        patterns: Iterable[tuple[int, ...]] = [(1,)]
        if self.operation == "svd":
            rank = min(4, *np.array(next(iter(self.given.values()))).shape)
            patterns = product((1, -1), repeat=rank)
        for pattern in patterns:
            yield self.make_key(self._expect(*pattern))

    def main_names(self) -> tuple[str, ...]:
        """Return the result of the operation."""
        if self.operation == "eigen":
            return ("eigenvalues",)
        return ("singular_values",) if self.operation == "svd" else (self.expected_values()[-1].name,)

    def _expect(self, *signs: int) -> list[ExpectedValue]:
        """Return the values of the operation; `signs` are those of the singular vectors."""
        arrays = [np.array(value, dtype=np.float64) for value in self.given.values()]
        match self.operation:
            case "expression":
                return [self._expect_expression()]
            case "cosine" | "distance" | "projection":
                return self._compare(arrays[0], arrays[1])
            case "norm":
                return self._expect_norms(arrays[0].ravel())
            case "mean":
                return self._expect_mean(arrays)
            case "svd":
                return self._expect_svd(arrays[0], signs)
            case "eigen":
                return self._expect_eigen(arrays[0])
            case "tf-idf":
                return self._expect_tfidf()
            case "co-occurrence":
                return self._expect_counts()
            case "pmi" | "ppmi":
                return self._expect_pmi(arrays[0])
        index = self.vocabulary.index(self.word)
        hot = np.eye(len(self.vocabulary))
        mistakes = {f"the 1 is at the position of {word}": row for word, row in zip(self.vocabulary, hot, strict=True)}
        return [expect("one_hot vector x e result", hot[index], f"one-hot vector of {self.word}", mistakes=mistakes)]

    def _expect_expression(self) -> ExpectedValue:
        """Return the value of the expression."""
        node = parse_expression(self.expression)
        value = evaluate(node, self.given, self.vectors)
        return expect(
            list(dict.fromkeys([self.symbol, "result", "y"])),
            value,
            self.expression,
            self.expression,
            "; ".join(describe_steps(node, self.given, self.vectors)),
            evaluate_mistakes(node, self.given, self.vectors),
            up_to=frozenset(self.up_to),
        )

    def _compare(self, a: Array, b: Array) -> list[ExpectedValue]:
        """Return inner product, norms, cosine, distance and projection of two vectors."""
        first, second = list(self.given)[:2]
        dot, left, right = float(a @ b), float(np.linalg.norm(a)), float(np.linalg.norm(b))
        cosine = dot / (left * right) if left and right else 0.0
        distance = float(np.linalg.norm(a - b))
        products = show_terms(a * b)
        values = [
            expect(
                "dot inner_product a·b",
                dot,
                f"{first}·{second}",
                "Σ a_i·b_i",
                products,
                {"the products are not added with their signs": float(np.abs(a * b).sum())},
            ),
            expect(
                f"norm_{first} |{first}| ||{first}|| norm({first})",
                left,
                "",
                "√(Σ x²)",
                "",
                {"the root is left out": left**2},
            ),
            expect(
                f"norm_{second} |{second}| ||{second}|| norm({second})",
                right,
                "",
                "√(Σ x²)",
                "",
                {"the root is left out": right**2},
            ),
        ]
        squares = left**2 * right**2
        cosine_value = expect(
            f"cosine cos cosine_similarity cos({first},{second}) similarity sim",
            cosine,
            "cosine of the angle",
            "a·b / (‖a‖·‖b‖)",
            f"{show(dot)} / ({show(left)}·{show(right)})",
            {
                "the inner product is not divided by the norms": dot,
                "the norms are not rooted": dot / squares if squares else np.nan,
                "only one norm is divided by": dot / left if left else np.nan,
                "only the other norm is divided by": dot / right if right else np.nan,
                "the norms are added instead of multiplied": dot / (left + right) if left + right else np.nan,
                "L1 norms are taken": dot / float(np.abs(a).sum() * np.abs(b).sum()) if squares else np.nan,
                "that is 1 − cosine: the distance": 1 - cosine,
                "that is the angle in radians": float(np.arccos(np.clip(cosine, -1, 1))),
                "that is the angle in degrees": float(np.degrees(np.arccos(np.clip(cosine, -1, 1)))),
            },
        )
        distance_value = expect(
            "distance euclidean d L2",
            distance,
            "Euclidean distance",
            "√(Σ (a_i − b_i)²)",
            f"√({show_terms((a - b) ** 2)})",
            {
                "the root is left out": distance**2,
                "the absolute differences are added (L1)": float(np.abs(a - b).sum()),
                "the norms are subtracted": abs(left - right),
                "the vectors are added": float(np.linalg.norm(a + b)),
                "the largest difference is taken": float(np.abs(a - b).max()),
                "the squares are averaged": float(np.sqrt(((a - b) ** 2).mean())),
            },
        )
        projection = b * dot / right**2 if right else b
        projection_value = expect(
            "projection proj p result",
            projection,
            f"projection of {first} on {second}",
            "(a·b / b·b)·b",
            f"{show(dot)} / {show(right**2)} · {show(b)}",
            {
                "the vectors are exchanged: that is the projection of the second on the first": a * dot / left**2
                if left
                else a,
                "the divisor is ‖b‖ instead of ‖b‖²": b * dot / right if right else b,
                "the division by ‖b‖² is left out": b * dot,
                "that is the rest a − projection": a - projection,
                "the divisor is ‖a‖·‖b‖": b * dot / (left * right) if left and right else b,
            },
        )
        order = {"cosine": cosine_value, "distance": distance_value, "projection": projection_value}
        names = [name for name in order if name != self.operation] + [self.operation]
        return [*values, *(order[name] for name in names if name != "projection" or right)]

    def _expect_norms(self, x: Array) -> list[ExpectedValue]:
        """Return L1, L∞ and L2 norm, and the unit vector."""
        l1, largest, l2 = float(np.abs(x).sum()), float(np.abs(x).max()), float(np.linalg.norm(x))
        values = [
            expect(
                "L1 norm1 norm_1",
                l1,
                "sum of absolute values",
                "Σ|x|",
                show_terms(np.abs(x)),
                {"the signs are not removed": float(x.sum())},
            ),
            expect("Linf norm_inf max_norm L∞", largest, "largest absolute value", "max|x|"),
        ]
        if l2:
            mistakes = {
                "the vector is divided by its sum": x / x.sum() if x.sum() else np.nan,
                "the vector is divided by the squared norm": x / l2**2,
                "the vector is divided by its L1 norm": x / l1,
                "the vector is divided by its largest entry": x / largest,
            }
            values.append(expect("unit normalized unit_vector", x / l2, "x / ‖x‖", "x / ‖x‖", "", mistakes))
        mistakes = {
            "the root is left out": l2**2,
            "the absolute values are added: the L1 norm": l1,
            "that is the largest entry": largest,
            "the squares are averaged": l2 / np.sqrt(len(x)),
        }
        names = "norm L2 norm2 norm_2 length ||x|| result"
        values.append(expect(names, l2, "Euclidean norm", "√(Σ x²)", f"√({show_terms(x**2)})", mistakes))
        return values

    def _expect_mean(self, arrays: Sequence[Array]) -> list[ExpectedValue]:
        """Return the mean of the given vectors, or of the rows of a matrix."""
        rows = arrays[0] if arrays[0].ndim == 2 else np.stack(arrays)
        mistakes: dict[str, Any] = {"the sum is not divided": rows.sum(0), "the largest entries are taken": rows.max(0)}
        if rows.shape[0] == rows.shape[1]:
            mistakes["the mean goes along the rows: entries instead of vectors are averaged"] = rows.mean(1)
        formula, work = "sum of the vectors / their number", f"{show(rows.sum(0))} / {len(rows)}"
        return [expect("mean average result m", rows.mean(0), "mean of the vectors", formula, work, mistakes)]

    def _expect_svd(self, matrix: Array, signs: Sequence[int]) -> list[ExpectedValue]:
        """Return singular values, vectors and the best approximations of lower rank."""
        left, singular, right = np.linalg.svd(matrix, full_matrices=False)
        count = len(singular)
        pattern = np.array([*signs, *([1] * count)])[:count]
        left, right = left * pattern, right * pattern[:, None]
        eigenvalues = singular**2
        values: list[ExpectedValue] = []
        sign = frozenset({"sign"})
        for index in range(min(count, 4)):
            number = index + 1
            other = {"that is the right singular vector": right[index]}
            values.append(expect(f"u{number}", left[:, index], "left singular vector", mistakes=other, up_to=sign))
            other = {"that is the left singular vector": left[:, index]}
            values.append(expect(f"v{number}", right[index], "right singular vector", mistakes=other, up_to=sign))
            approximation = left[:, :number] * singular[:number] @ right[:number]
            mistakes = {"the singular values are left out": left[:, :number] @ right[:number]}
            mistakes["the singular values are squared"] = left[:, :number] * eigenvalues[:number] @ right[:number]
            names = f"A{number} rank{number} A_{number}"
            values.append(expect(names, approximation, f"best of rank {number}", "Σ σ_i·u_i·v_iᵀ", "", mistakes))
        values.append(expect("U", left, "left singular vectors in columns", mistakes={"transposed": left.T}))
        values.append(
            expect("V", right.T, "right singular vectors in columns", mistakes={}, up_to=frozenset({"transposition"}))
        )
        values.append(
            expect(
                "singular_values sigma S s",
                singular,
                "from the largest",
                "roots of the eigenvalues of AᵀA",
                f"√{show(eigenvalues)}",
                {"the eigenvalues of AᵀA are not rooted": eigenvalues, "the order is reversed": singular[::-1]},
            )
        )
        return values

    def _expect_eigen(self, matrix: Array) -> list[ExpectedValue]:
        """Return determinant, trace, eigenvalues and eigenvectors."""
        eigenvalues, vectors = np.linalg.eig(matrix)
        order = np.argsort(-np.real(eigenvalues))
        eigenvalues, vectors = np.real(eigenvalues)[order], np.real(vectors)[:, order]
        values = [
            expect("trace tr", float(np.trace(matrix))),
            expect("determinant det", float(np.linalg.det(matrix))),
        ]
        free = frozenset({"sign", "scale"})
        for index, vector in enumerate(vectors.T, 1):
            if np.sum(np.abs(eigenvalues - eigenvalues[index - 1]) < 1e-6) > 1:
                continue  # any vector of a plane is right
            rows = {"that is an eigenvector of the transpose": _left_vector(matrix, eigenvalues[index - 1])}
            names = f"v{index} eigenvector{index} x{index} e{index} q{index}"
            meaning = f"eigenvector of the eigenvalue {index} from the largest"
            values.append(expect(names, vector, meaning, "(A − λI)v = 0", "", rows, up_to=free))
        values.append(
            expect(
                "eigenvalues lambda λ",
                eigenvalues,
                "in any order",
                "det(A − λI) = 0",
                "",
                {"that is the diagonal": np.sort(np.diag(matrix))[::-1]},
                up_to=frozenset({"order"}),
            )
        )
        return values

    # Texts

    def terms(self) -> list[str]:
        """Return the different words of the documents in their order."""
        words = [word for sentence in self.documents for word in sentence.split()]
        return list(dict.fromkeys([*self.vocabulary, *(word for word in words if not self.vocabulary)]))

    def _expect_tfidf(self) -> list[ExpectedValue]:
        """Return term frequencies, document frequencies, IDF and TF-IDF."""
        terms, documents = self.terms(), [sentence.split() for sentence in self.documents]
        counts = np.array([[float(words.count(term)) for term in terms] for words in documents])
        base = LOGS[self.log_base or "e"]
        present = counts > 0
        logs = np.where(present, np.log(np.where(present, counts, 1)) / base, 0.0)
        lengths = np.array([len(words) for words in documents], dtype=float)[:, None]
        frequencies = {
            "raw": counts,
            "relative": counts / lengths,
            "log": np.where(present, 1 + logs, 0.0),
            "log1p": np.log1p(counts) / base,
        }
        tf = frequencies[self.tf_scheme or "raw"]
        df, number = present.sum(axis=0).astype(float), len(documents)
        safe = np.where(df > 0, df, 1.0)
        inverse = {
            "plain": np.log(number / safe) / base,
            "smooth": np.log((1 + number) / (1 + df)) / base + 1,
            "plus-one": np.log(number / safe) / base + 1,
        }
        idf = inverse[self.idf_scheme or "plain"]
        documents_labels = [f"d{index}" for index in range(1, number + 1)]
        both = [documents_labels, terms]
        wrong_idf = {
            "the fraction is inverted: log(df/N)": -np.log(number / safe) / base,
            "the logarithm is left out: N/df": number / safe,
            "the count in all documents is taken instead of the number of documents": np.log(
                number / np.maximum(counts.sum(axis=0), 1)
            )
            / base,
            "that is df / N": df / number,
            **{f"the logarithm has the base {other}": idf * base / scale for other, scale in LOGS.items()},
        }
        free = frozenset({"transposition"})
        wrong: dict[str, Any] = {text: tf * other for text, other in wrong_idf.items()}
        wrong |= {
            "the term frequency is divided by the IDF": np.divide(tf, idf, out=np.zeros_like(tf), where=idf != 0),
            "the IDF is left out": tf,
            "every term that occurs counts once": present * idf,
        }
        for name, other in frequencies.items():
            if name != (self.tf_scheme or "raw"):
                wrong[f"the term frequency is {TF_TEXTS[name]}"] = other * idf
        return [
            expect("tf", tf, "term frequencies; rows: documents", labels=both, up_to=free),
            expect(
                "df",
                df,
                "number of documents with each term",
                labels=[terms],
                mistakes={"the occurrences are counted instead of the documents": counts.sum(axis=0)},
            ),
            expect(
                "idf",
                idf,
                "inverse document frequency",
                IDF_TEXTS[self.idf_scheme or "plain"],
                "",
                wrong_idf,
                labels=[terms],
            ),
            expect("tfidf tf-idf w result", tf * idf, "rows: documents", "tf·idf", "", wrong, labels=both, up_to=free),
        ]

    def find_value(self, name: str) -> ExpectedValue | None:
        """Return an entry of a matrix by its words, as in tfidf(cat, d1) or count(the, cat)."""
        match = re.fullmatch(r"\s*([\w-]+)\s*\(\s*([^\s,()]+)\s*(?:,\s*([^\s,()]+)\s*)?\)\s*", name)
        if not match or self.operation not in ("tf-idf", "co-occurrence"):
            return None
        stem = {"count": "counts", "tf-idf": "tfidf", "c": "counts"}.get(match[1].casefold(), match[1].casefold())
        value = next((value for value in self.expected_values() if value.name == stem), None)
        if value is None or not 1 <= len(value.labels) <= 2:
            return None
        labels = [label for label in (match[2], match[3]) if label]
        if len(labels) == 2 and labels[0] not in value.labels[0]:
            labels.reverse()
        if len(labels) != len(value.labels) or any(a not in axis for a, axis in zip(labels, value.labels, strict=True)):
            return None
        index = tuple(axis.index(label) for label, axis in zip(labels, value.labels, strict=True))
        mistakes = {text: array[index] for text, array in value.mistakes.items()}
        return expect([name], value.values[index], value.meaning, value.formula, "", mistakes)

    def _expect_counts(self) -> list[ExpectedValue]:
        """Return the co-occurrence counts within the window, and PPMI of them."""
        terms, sentences = self.terms(), [sentence.split() for sentence in self.documents]

        def count(window: int, forward: bool = False, across: bool = False) -> Array:
            table = np.zeros((len(terms), len(terms)))
            index = {term: number for number, term in enumerate(terms)}
            rows = [[word for sentence in sentences for word in sentence]] if across else sentences
            for words in rows:
                for start, word in enumerate(words):
                    low = start + 1 if forward else max(0, start - window)
                    for position in range(low, min(len(words), start + window + 1)):
                        if position != start and word in index and words[position] in index:
                            table[index[word], index[words[position]]] += 1
            return table

        table = count(self.window)
        mistakes = {
            "only the words to the right are counted": count(self.window, forward=True),
            "words of different sentences are counted, too": count(self.window, across=True),
            "the window is one word wider": count(self.window + 1),
            "the window is one word narrower": count(self.window - 1),
            "each pair counts once": np.minimum(table, 1),
            "each word co-occurs with itself, too": table + np.diag(np.diag(np.ones_like(table))),
        }
        meaning = f"words within {self.window} of each other"
        return [expect("counts co-occurrence C M result", table, meaning, "", "", mistakes, labels=[terms, terms])]

    def _expect_pmi(self, counts: Array) -> list[ExpectedValue]:
        """Return probabilities, PMI and PPMI of a table of counts."""
        base = LOGS[self.log_base or "2"]
        joint = counts / counts.sum()
        rows, columns = joint.sum(1), joint.sum(0)
        expected = np.outer(rows, columns)
        positive = joint > 0
        ratio = np.where(positive, joint / expected, 1.0)
        pmi = np.log(ratio) / base
        ppmi = np.maximum(pmi, 0.0)
        mistakes: dict[str, Any] = {
            "the logarithm is left out": np.where(positive, ratio, 0.0),
            **{f"the logarithm has the base {other}": ppmi * base / scale for other, scale in LOGS.items()},
            "the probabilities are given": joint,
        }
        values = [
            expect("joint p_xy", joint, "counts / sum of all counts"),
            expect(
                "p_rows p_x",
                rows,
                "sums of the rows",
                mistakes={"those are the sums of the columns": columns} if len(rows) == len(columns) else {},
            ),
            expect("p_columns p_y", columns, "sums of the columns"),
        ]
        if positive.all():
            values.append(expect("PMI", pmi, "", "log p(x, y) / (p(x)·p(y))", "", {"negative values become 0": ppmi}))
        values.append(
            expect("PPMI result", ppmi, "", "max(0, PMI)", "", {**mistakes, "negative values stay; they become 0": pmi})
        )
        if self.operation == "pmi" and positive.all():
            values.append(values.pop(-2))
        return values

    def conventions(self) -> Iterable[tuple[str, Self]]:
        """Yield the other ways to weigh terms and the other bases, where the statement leaves them open."""
        if self.operation in ("pmi", "ppmi") and not self.log_base:
            for base in ("e", "10"):
                yield f"Read with logarithms to the base {base}.", self.model_copy(update={"log_base": base})
        if self.operation != "tf-idf":
            return
        for tf in (self.tf_scheme,) if self.tf_scheme else TF_TEXTS:
            for idf in (self.idf_scheme,) if self.idf_scheme else IDF_TEXTS:
                for base in (self.log_base,) if self.log_base else LOGS:
                    note = f"Read with tf = {TF_TEXTS[tf]}, idf = {IDF_TEXTS[idf]} and logarithms to the base {base}."
                    yield note, self.model_copy(update={"tf_scheme": tf, "idf_scheme": idf, "log_base": base})


TF_TEXTS = {"raw": "the count", "relative": "count / length", "log": "1 + log(count)", "log1p": "log(1 + count)"}
IDF_TEXTS = {"plain": "log(N/df)", "smooth": "log((1+N)/(1+df)) + 1", "plus-one": "log(N/df) + 1"}


def _left_vector(matrix: Array, eigenvalue: float) -> Array:
    """Return an eigenvector of the transposed matrix."""
    eigenvalues, vectors = np.linalg.eig(matrix.T)
    return np.real(vectors)[:, int(np.abs(eigenvalues - eigenvalue).argmin())]
