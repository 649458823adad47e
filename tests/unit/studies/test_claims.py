from typing import Any

import pytest
from made_up import made_up

from lemma.errors import SpecError
from lemma.spec.data import DataSpec
from lemma.spec.studies import Claim, Comparison, Contender, StudySpec, read_study
from lemma.studies.result import conclude, judge, make_table

A6 = read_study("table-a5").claims
Numbers = dict[tuple[int, int], list[float | str | None]]


def verdicts(numbers: Numbers) -> list[str]:
    outcomes = [
        outcome
        for (depth, context), values in numbers.items()
        for outcome in made_up("table-a5", values, {"depth": depth, "context": context})
    ]
    return [judge(claim, make_table(outcomes).rows).verdict for claim in A6]


SOURCE: Numbers = {(2, 3): [8.32, 8.33], (2, 5): [10.63, 10.62], (4, 3): [8.15, 8.16], (4, 5): [6.65, 6.64]}


def test_the_sources_own_numbers_bear_out_both_claims_if_seeds_agree() -> None:
    assert verdicts(SOURCE) == ["held", "held"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({(4, 3): [8.52, 8.53]}, ["not held", "held"]),
        ({(4, 3): [8.1, 8.6]}, ["within noise", "within noise"]),
        ({(2, 5): [7.02, 7.01]}, ["held", "not held"]),
        ({(4, 5): [9.02, 9.01]}, ["held", "not held"]),
        ({(4, 5): ["out of memory", None]}, ["not measured", "not measured"]),
        ({place: [values[0]] for place, values in SOURCE.items()}, ["one seed only", "one seed only"]),
    ],
)
def test_verdicts_follow_the_numbers(changes: Numbers, expected: list[str]) -> None:
    assert verdicts({**SOURCE, **changes}) == expected


def test_a_clear_refutation_outweighs_noise_elsewhere() -> None:
    assert verdicts({**SOURCE, (4, 3): [8.52, 8.53], (2, 5): [1.0, 99.0]})[0] == "not held"


def test_findings_name_the_places_and_the_difference() -> None:
    rows = make_table([*made_up("a", [9.0, 9.2], {"depth": 2}), *made_up("a", [7.0, 7.2], {"depth": 4})]).rows
    claim = Claim(says="Deeper is better.", comparisons=(Comparison(at={"depth": 4}, against={"depth": 2}),))
    (judged,) = judge(claim, rows).comparisons
    assert judged.finding == (
        "depth=4 against depth=2: 7.1 ± 1.3 against 9.1 ± 1.3, difference −2.00 ± 0.61, expected below 0"
    )
    assert judged.verdict == "held"


def test_contenders_can_be_compared_at_every_place_of_the_grid() -> None:
    rows = make_table(
        [
            *(
                outcome
                for name in ("x", "y")
                for depth in (1, 2)
                for outcome in made_up(name, [5.0, 5.1], {"depth": depth})
            )
        ]
    ).rows
    claim = Claim(says="x beats y.", comparisons=(Comparison(at={"contender": "x"}, against={"contender": "y"}),))
    findings = [judged.finding for judged in judge(claim, rows).comparisons]
    assert [finding.partition(":")[0] for finding in findings] == [
        "contender=x against contender=y (depth=1)",
        "contender=x against contender=y (depth=2)",
    ]


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        ({"at": {"dept": 2}, "against": {"dept": 1}}, "Did you mean 'depth'"),
        ({"at": {"depth": 9}, "against": {"depth": 1}}, "depth = 9 is not in the grid"),
        ({"at": {"depth": 1}, "against": {"contender": "a"}}, "must name the same words"),
        ({"at": {"depth": 1}, "against": {"depth": 1}}, "differ in at least one value"),
    ],
)
def test_a_claim_about_nothing_is_refused(comparison: dict[str, Any], said: str) -> None:
    words = {
        "name": "s",
        "data": DataSpec(text=("a.txt",)).to_dict(),
        "contenders": [Contender(model="rnn").to_dict()],
        "grid": {"depth": [1, 2]},
        "claims": [{"says": "", "comparisons": [comparison]}],
    }
    with pytest.raises(SpecError) as mistake:
        StudySpec.read(words, "study")
    assert said in str(mistake.value)


def test_the_conclusion_says_who_is_best_and_whether_that_is_certain() -> None:
    clear = conclude(make_table([*made_up("rnn", [8.0, 8.01]), *made_up("lstm", [6.0, 6.01])]))
    assert clear[0] == "lstm has the lowest validation perplexity: 6.005 ± 0.064."
    assert clear[1] == "No other interval overlaps with it; next is rnn with 8.005 ± 0.064."
    near = conclude(
        make_table([*made_up("rnn", [6.0, 6.4]), *made_up("gru", [9.9, 9.91]), *made_up("lstm", [6.1, 6.2])])
    )
    assert near[0].startswith("lstm has the lowest")
    assert near[1] == (
        "The 95 % interval of rnn (6.2 ± 2.5) overlaps with it: this study does not tell them apart. "
        "Two seeds make wide intervals (t = 12.7); more would narrow them."
    )
    assert "Clearly above it lies gru." in near


def test_an_interval_that_only_touches_the_best_one_overlaps_with_it() -> None:
    touching = conclude(
        make_table([*made_up("lstm", [6.1, 6.2]), *made_up("gru", [6.7, 6.7]), *made_up("rnn", [6.8, 6.8])])
    )
    assert touching[1].startswith("The 95 % interval of gru (6.7 ± 0.0) overlaps")
    assert "Clearly above it lies rnn." in touching


def test_the_conclusion_is_honest_about_single_seeds_and_missing_runs() -> None:
    single = conclude(make_table([*made_up("rnn", [8.0]), *made_up("lstm", [6.0])]))
    assert "One seed has no interval, so the noise is unknown." in single[1]
    broken = conclude(make_table([*made_up("rnn", [8.0, "nan"]), *made_up("lstm", [None, None])]))
    assert "1 of 4 runs failed; its reason stands with the table." in broken
    assert "2 of 4 runs are still to be run." in broken
    assert conclude(make_table(made_up("rnn", ["nan"])))[0].startswith("No run came to its end")


def test_the_conclusion_gives_the_verdict_on_each_claim() -> None:
    outcomes = [*made_up("a", [9.0, 9.01], {"depth": 2}), *made_up("a", [7.0, 7.01], {"depth": 4})]
    table = make_table(outcomes)
    claim = Claim(says="Deeper is better.", comparisons=(Comparison(at={"depth": 4}, against={"depth": 2}),))
    assert conclude(table, [judge(claim, table.rows)])[-1] == "“Deeper is better”: held in every comparison."
