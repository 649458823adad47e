"""`lemma check worked`: rounding of numbers, entries by label, mistakes recognized by their value."""

import json
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lemma.checking.read_values import RoundedArray, read_value
from lemma.checking.worked.attention import work_cross_attention
from lemma.checking.worked.bpe import BytePairMerger
from lemma.checking.worked.check import answer_keys, check_worked, describe_worked
from lemma.checking.worked.lstm import work_lstm
from lemma.checking.worked.matching import work_matching
from lemma.cli.main import main
from lemma.errors import InputError, SpecError
from lemma.report.numbers import read_entry
from lemma.report.text import display_width

BPE = "bpe:abbc abb abc abb"


def right(case: str, line: str) -> bool:
    return check_worked(case, [line]).right


def matches_rounded(exact: float, text: str) -> bool:
    return RoundedArray.from_entries(np.array(read_entry(text), dtype=object)).matches(np.array(exact))


def mistake(case: str, line: str) -> str:
    (checked,) = check_worked(case, [line]).lines
    assert not checked.right
    return checked.mistake


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("e1", "alpha2[they, Ajax] = 0.119"),
        ("e1", "α2[they, Juventus] = 0.096"),
        ("e1", "alpha1[they] = [.08, .08, .08, .08, .08, .219, .08, .08, .219]"),
        ("e1", "alpha1[6, 9] = 0.2186"),
        ("e1", "sentence2.alpha2[they, Juventus] = 0.119"),
        ("e1", "alpha2[they, Ajax] > alpha2[they, Juventus]"),
        ("e1", "sentence2.alpha2[they, Ajax] < 0.1"),
        ("e7", "P = [[-1.23, -0.15, 0.89], [0.03, -0.07, -0.05]]"),
        ("e7", "Q[:, 1] = [-0.96, 0.92, -0.56]"),
        ("e7", "best = [sentence 3, sentence 2]"),
        ("e7", "best_cosine = {image 1: sentence 3, image 2: sentence 2}"),
        ("e8", "alpha[image 1] = (0.4251, 0.0829, 0.4920)"),
        ("e9", "h_t = [0.334, −0.262]"),
        ("e9", "c_t[1] = 13/25"),
        ("c1", "loss = 1.43"),
        ("c1", "Γ_u = [0.69, 0.5125]"),
        ("d4", "norm_Â = 1"),
        ("cycle", "sum_A_hat = [1, 1, 1, 1, 1]"),
        (BPE, r"merges = [ab, Ab, c\w, B\w]"),
        (BPE, r"merges = [ab, Ab, B\w, c\w]"),
        (BPE, r"merges = [a b, ab b, c </w>, abb </w>]"),
        (BPE, r"counts1 = {b\w: 2, ab: 4, bb: 3, bc: 2, c\w: 2}"),
        (BPE, "A = ab"),
        (BPE, r"merges = [('a', 'b'), ('ab', 'b'), ('c', '</w>'), ('abb', '</w>')]"),
        (BPE, r"counts1 = {(a, b): 4, (b, b): 3, (b, c): 2, (c, \w): 2, (b, \w): 2}"),
        (BPE, r"counts2 = {ab b: 3, ab c: 1, b c: 1, c \w: 2, b \w: 2}"),
        (BPE, "counts2[Ab] = 3"),
        (BPE, r"segmentation = {abbc: [abb, c\w], abb: [abb\w], abc: [ab, c\w]}"),
    ],
)
def test_right_lines_are_accepted(case: str, line: str) -> None:
    assert right(case, line), check_worked(case, [line])


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("e1", "alpha2[they, Ajax] = 0.120"),
        ("e1", "alpha2[they, Ajax] = 0"),  # a whole number must be exact
        ("e1", "alpha2[they, Ajax] < alpha2[they, Juventus]"),
        ("e7", "best[image 1] = sentence 1"),
        ("e9", "c_t = [0.5, -0.34]"),  # a list is rounded to the decimals of its longest number
        ("d4", "sum_A_hat = [1, 1, 1, 1, 1, 1]"),
        (BPE, r"merges = [ab, bb, c\w, B\w]"),
        (BPE, "steps = 3"),
    ],
)
def test_wrong_lines_are_rejected(case: str, line: str) -> None:
    assert not right(case, line)


def test_ties_merge_in_any_order_consistent_across_lines() -> None:
    other = [r"merges = [ab, Ab, B\w, c\w]", "segmentation = {abbc: B D, abb: C, abc: A D}"]
    assert check_worked(BPE, other).right
    mixed = check_worked(BPE, [other[0], "segmentation = {abbc: B C, abb: D, abc: A C}"])
    assert [line.right for line in mixed.lines].count(False) == 1
    assert "Ties: any of the most frequent pairs" in str(mixed)


SENNRICH = "bpe:" + "low " * 5 + "lower " * 2 + "newest " * 6 + "widest " * 3
"""The dictionary of the paper (Sennrich et al.) and the merges that its program prints."""
OF_THE_PAPER = ["e s", "es t", "est </w>", "l o", "lo w", "n e", "ne w", "new est</w>", "low </w>", "w i"]


def test_sennrich_merges_are_right_with_any_separator() -> None:
    for blank in (" ", "", " + "):
        lines = [f"merge{step} = {pair.replace(' ', blank)}" for step, pair in enumerate(OF_THE_PAPER, 1)]
        assert check_worked(SENNRICH, lines).right


def test_pair_below_the_highest_frequency_is_wrong() -> None:
    lines = check_worked(SENNRICH, ["merge1 = es", "merge2 = lo", "merge3 = est\\w"]).lines
    assert [line.right for line in lines] == [True, False, True]
    assert not check_worked(SENNRICH, ["merge1 = low"]).right


@pytest.mark.parametrize("claims", [["merge1 = gh"], ["merge2 = ef", "merge4 = ab", r"merge8 = ab\w"], ["G = gh"]])
def test_many_ties_are_merged_in_claimed_order(claims: list[str]) -> None:
    report = check_worked("bpe:ab cd ef gh ab cd ef gh", claims)
    assert report.right, str(report)


def test_claimed_merge_order_is_replayed_with_many_ties() -> None:
    chance = random.Random(5)
    for _ in range(20):
        words = ["".join(chance.choices("abcde", k=chance.randrange(1, 6))) for _ in range(20)]
        text = " ".join(words * 2)
        merger, lines = BytePairMerger(Counter(text.split()), r"\w"), list[str]()
        decoded = [*merger.alphabet, r"\w"]
        while (ties := merger.most_frequent())[0] >= 2:
            left, right_symbol = pair = chance.choice(ties[1])
            lines += [f"merge{len(merger.merges) + 1} = {decoded[left]} {decoded[right_symbol]}"]
            decoded.append(decoded[left] + decoded[right_symbol])
            merger.merge(pair)
        report = check_worked(f"bpe:{text}", lines[:150])
        assert report.right, str(report)


def test_excess_merge_is_wrong_and_others_are_checked() -> None:
    lines = check_worked("bpe:ab ab", ["merge1 = ab", r"merge2 = ab\w", "merge3 = ab", "count3 = 2"]).lines
    assert [line.right for line in lines] == [True, True, False, False]
    assert lines[2].differences == ("there are 2 merges, after which no pair occurs twice",)


def test_ties_in_long_text_take_bounded_time() -> None:
    text = " ".join(a + b for a in "abcdefghij" for b in "klmnopqrst") + " "
    started = time.process_time()
    assert not check_worked(f"bpe:{(text * 3)[:1000]}", ["merge7 = zz", "merge9 = ak", "steps = 1"]).right
    assert time.process_time() - started < 3


ONE_QUERY = {
    "queries": {"q": [1, 2]},
    "source": {"a": [0, 1], "b": [1, 4], "c": [9, 0], "d": [2, 1]},
    **{name: [[1, 0], [0, 1]] for name in ("W_Q", "W_K", "W_V")},
}


@pytest.mark.parametrize(
    "line",
    [
        "qk = [2, 9, 9, 4]",
        "qk = [[2, 9, 9, 4]]",
        "qk = {a: 2, b: 9, c: 9, d: 4}",
        "qk = [2 9 9 4]",
        "qk = 2, 9, 9, 4",
        "qk = np.array([[2., 9., 9., 4.]])",
        r"qk = \begin{pmatrix} 2 & 9 & 9 & 4 \end{pmatrix}",
        "qk[q] = [[2], [9], [9], [4]]",
        "qk[q] = [2; 9; 9; 4]",
        "qk[q] = (2, 9, 9, 4)ᵀ",
        "qk[q, a] = [2]",
        "preferred = c",
    ],
)
def test_vectors_rows_and_columns_are_interchangeable(line: str) -> None:
    report = check_worked(ONE_QUERY, [line])
    assert report.right, str(report)


@pytest.mark.parametrize(
    "line", ["qk = [[2], [9], [9], [4]]", "qk = [9, 2, 9, 4]", "qk = [2, 9, 9]", "qk = 2", "qk = [[2, 9], [9, 4]]"]
)
def test_other_shapes_and_orders_of_rows_are_wrong(line: str) -> None:
    assert not check_worked(ONE_QUERY, [line]).right


def test_matrix_rows_are_read_in_several_notations() -> None:
    for text in ("[1, 2; 3, 4]", "[1 2; 3 4]", "[[1 2] [3 4]]", "[[1, 2], [3, 4]]", "[1 2; 3 4;]"):
        assert [[item.value for item in row] for row in read_value(text)] == [[1, 2], [3, 4]], text


def numbers(values: np.ndarray) -> str:
    return json.dumps(np.round(values, 4).tolist())


def test_mistakes_in_attention_are_distinguished() -> None:
    steps = work_cross_attention("e8").steps
    raw = np.exp(steps.products)
    wrong = {
        "not divided by √3": raw / raw.sum(1, keepdims=True),
        "down the columns": steps.exponentials / steps.exponentials.sum(0),
        "that is exp": steps.exponentials,
        "the sign is wrong": -steps.weights,
        "transposed": steps.weights.T,
        "rows are in another order": steps.weights[::-1],
        "twice": 2 * steps.weights,
    }
    for output, values in wrong.items():
        assert output in mistake("e8", f"alpha = {numbers(values)}"), output
    assert "not divided by √3" in mistake("e8", f"score = {numbers(steps.products)}")
    assert "not normalised" in mistake("e8", f"output = {numbers(steps.exponentials @ steps.values)}")


def test_mistakes_in_lstm_graph_and_search_are_diagnosed() -> None:
    built, options = work_lstm("e9").forward, work_lstm("e9").case_values
    assert "tanh is left out" in mistake("e9", f"h_t = {numbers(options['gamma_o'] * built['c_t'])}")
    exchanged = options["gamma_u"] * options["c_prev"] + options["gamma_f"] * options["candidate"]
    assert "Γ_u and Γ_f are exchanged" in mistake("e9", f"c_t = {numbers(exchanged)}")
    back = work_lstm("c1", backward=True)
    twice = back.backward["dpre_u"] * back.forward["gamma_u"] * (1 - back.forward["gamma_u"])
    assert "counts twice" in mistake("c1", f"db_u = {json.dumps(twice.tolist())}")
    assert "not normalised; those of D̃⁻¹Ã are" in mistake("d4", "sum_Â = [1, 1, 1, 1, 1, 1]")
    assert "that is A_rows" in mistake("d4", "Â[hub, a] = 0.25")
    assert "that is cosines" in mistake("e7", f"scores = {numbers(work_matching('e7').steps.cosines)}")
    assert "rounded on the way" in mistake("e8", "alpha[image 1, sentence 1] = 0.4256")


def test_wrong_line_reports_differences_and_expected_value() -> None:
    (checked,) = check_worked("e7", ["P = [[-1.23, 0.51, 0.89], [0.03, -0.07, -0.05]]"]).lines
    assert checked.differences == ("[image 1, 2]: 0.51 given, −0.15 is right",)
    assert checked.expected == "P = [[−1.23, −0.15, 0.89], [0.03, −0.07, −0.05]]"


@settings(max_examples=60, deadline=None)
@given(st.floats(-50, 50), st.integers(1, 6))
def test_python_rounding_is_right_and_one_unit_off_is_wrong(value: float, decimals: int) -> None:
    text = f"{value:.{decimals}f}"
    assert matches_rounded(value, text)
    farther = RoundedArray(np.array(float(text) + 1.1 * 10**-decimals), np.array(10.0**-decimals))
    assert not farther.matches(np.array(value))


@pytest.mark.parametrize("case", ["c1", "cycle", "d4", "e1", "e7", "e8", "e9"])
def test_computed_quantities_pass_and_have_unique_names(case: str) -> None:
    quantities = next(answer_keys(case)).expected
    names = [name for quantity in quantities for name in (quantity.name, *quantity.aliases)]
    assert len(names) == len(set(names))
    listed = [quantity for quantity in quantities if quantity.is_numeric and np.isfinite(quantity.values).all()]
    lines = [f"{quantity.name} = {json.dumps(np.round(quantity.values, 6).tolist())}" for quantity in listed]
    assert check_worked(case, lines).right
    rendered = describe_worked(case)
    assert all(quantity.name in rendered for quantity in quantities if not quantity.name.startswith("sentence"))


@pytest.mark.parametrize(
    ("case", "line", "message"),
    [
        ("e1", "alpha = 1", "alpha1, alpha2"),
        ("e1", "alpa1 = 1", "Did you mean 'alpha1'"),
        ("e1", "alpha1[tey, Ajax] = 1", "Did you mean 'they'"),
        ("e9", "c_t[1, 1] = 1", "is a vector"),
        ("e9", "c_t = [0.5, foo]", "'foo' is not a number"),
        ("e9", "c_t", "NAME = VALUE"),
        ("e7", "P = [[1, 2], [3]]", "equally long"),
        ("e7", "P = [[1, 2", "is expected"),
        ("e7", "P = [[[[1]]]]", "too deep"),
        ("e3", "P = 1", "unknown case 'e3'"),
        ("bpe:", "steps = 1", "1 to 1,000 characters"),
        (BPE, "counts1 = {ab: 4}", "leaves out bb"),
    ],
)
def test_unreadable_lines_are_explained(case: str, line: str, message: str) -> None:
    with pytest.raises(InputError) as mistake:
        check_worked(case, [line])
    assert message in str(mistake.value)


def test_overlong_values_are_refused_and_descriptions_hide_values() -> None:
    with pytest.raises(InputError, match="at most 50,000"):
        read_value("1" * 60_000)
    assert "0.5" not in describe_worked("e9") and "c_t" in describe_worked("e9")
    assert "abbc" not in describe_worked(BPE)


def test_command_checks_a_custom_case_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, lines = tmp_path / "mine.toml", tmp_path / "lines.txt"
    work_lstm("e9").save(case)
    lines.write_text("c_t = [0.52, -0.34]\n")
    for words, status in (
        ([str(case), "--file", str(lines)], 0),
        ([str(case), "h_t = [0.33, 0.26]", "--json"], 1),
        ([str(case)], 2),
        (["e9", "--names"], 0),
    ):
        with pytest.raises(SystemExit) as exit_info:
            main(["check", "worked", *words])
        assert int(exit_info.value.code or 0) == status
        printed = capsys.readouterr().out
        assert "--json" in words or all(display_width(line) <= 80 for line in printed.splitlines())


def test_short_word_list_is_wrong_and_single_word_refused() -> None:
    checked = check_worked("bpe:aab aab aac", ["merges = [aa, aab]"]).lines[0]
    assert (checked.right, checked.differences) == (False, ("2 given, 3 words expected",))
    with pytest.raises(InputError, match="a list of words is expected"):
        check_worked("bpe:aab aab aac", ["merges = aa"])


@pytest.mark.parametrize("written", ["0e3", "1e0", "1e3", "0.0e2", "0e999", "0.00001e5", "[0.52, 0e3]"])
def test_power_of_ten_does_not_match_every_value(written: str) -> None:
    target = "c_t" if written.startswith("[") else "c_t[1]"
    assert not right("e9", f"{target} = {written}")


def test_power_of_ten_is_rounded_and_overflow_is_refused() -> None:
    assert right("e9", "c_t[1] = 5.2e-1") and not right("e9", "c_t[1] = 5.3e-1")
    assert matches_rounded(130_432, "1.3e5") and not matches_rounded(136_000, "1.3e5")
    assert read_entry("1e400") is None and read_entry("9" * 400) is None
    with pytest.raises(InputError, match="'1e400' is not a number"):
        right("e9", "c_t[1] = 1e400")


@pytest.mark.parametrize(
    ("case", "line", "missing"),
    [
        ("e7", "best = {}", "image 1, image 2"),
        ("e7", "best = {image 1: sentence 3}", "image 2"),
        (BPE, "segmentation = {abb: D}", "abbc, abc"),
        (BPE, "C = {}", "its one word"),
    ],
)
def test_incomplete_table_of_words_is_refused(case: str, line: str, missing: str) -> None:
    with pytest.raises(InputError, match=f"leaves out {missing}"):
        right(case, line)


def test_large_cases_and_long_values_are_checked_or_refused_in_time() -> None:
    words = [f"w{number}" for number in range(100)]
    rows = np.round(np.random.default_rng(1).normal(size=(100, 2)), 2).tolist()
    case = {"sentences": [" ".join(words)], "passes": 50, "vectors": dict(zip(words, rows, strict=True))}
    case |= {name: [[1, 0], [0, 1]] for name in ("W_Q", "W_K", "W_V")}
    square = np.random.default_rng(1).uniform(size=(70, 100)).round(2).tolist()
    started = time.process_time()
    assert not check_worked(case, [f"alpha1 = {square}", *(f"alpha{step}[w1] = {square[0]}" for step in range(1, 50))])
    assert not check_worked("e9", ["c_t = [" + "1; " * 15_000 + "1]"] * 4)
    with pytest.raises(SpecError, match="attention weights"):
        check_worked({**case, "sentences": [" ".join(words)] * 20}, ["alpha1 = 1"])
    with pytest.raises(InputError, match="characters"):
        check_worked("e9", ["c_t = [" + "1, " * 15_000 + "1]"] * 10)
    assert time.process_time() - started < 5


def test_zero_with_three_decimals_is_right_for_a_small_number() -> None:
    identity = [[1, 0], [0, 1]]
    case = {"sentences": ["a b"], "vectors": {"a": [0, 3], "b": [3, 0]}, "scaled": False}
    report = check_worked({**case, **dict.fromkeys(("W_Q", "W_K", "W_V"), identity)}, ["alpha[a, b] = 0.000"])
    assert report  # it is 0.0001234
    report = check_worked({**case, **dict.fromkeys(("W_Q", "W_K", "W_V"), identity)}, ["alpha[a, b] = 0.0"])
    assert not report and "sign" not in report.lines[0].mistake
