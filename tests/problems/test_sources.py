"""Every claim A1–E9 of the sources: the checkers find exactly the known errors."""

import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from lemma.checking.audit import Audit, SourceClaim, check_claim, check_sources, load_claims

pytestmark = pytest.mark.usefixtures("account_cache")

ERRORS = {"A5": 1, "C2": 4, "C6": 1, "D4": 1}
ROWS = {"A": 6, "B": 8, "C": 11, "D": 5, "E": 9}
ONLY_MEASURED = {"A6", "B4", "C3", "C4", "D5", "E4"}
VERDICTS = re.compile(r"\b(wrong|right|false|true|correct\w*|error|mistake|verdict|54\.1)\b", re.IGNORECASE)
SLOW = ("transformer-c5", "table-a5")
"""Models whose wrong numbers take long to diagnose: one claim of each is enough."""
CORRECTED = {
    "65 % increase from 2 to 4 layers": "54.1 % increase from 2 to 4 layers",
    "da = (y_hat - y).T @ W_y.T + da_next": "da = W_y.T @ (y_hat - y) + da_next",
    "db_y = (y_hat - y) @ a.T": "db_y = y_hat - y",
    "dpre_c = dc_tilde * (1 - pre_c)": "dpre_c = dc_tilde * (1 - c_tilde^2)",
    "db_u = dc * c_tilde * G_u * (1 - G_u) * G_u * (1 - G_u)": "db_u = dc * c_tilde * G_u * (1 - G_u)",
}
CORRECTED_SIZES = {"c6": {"says": "limit"}, "d4": {"matrix": "rows"}}


@pytest.fixture(scope="module")
def audit(account_cache: None) -> Audit:
    return check_sources()


def test_exactly_the_known_claims_are_wrong(audit: Audit) -> None:
    rows = {claim.claim.row for claim in audit.claims}
    assert rows == {f"{group}{number}" for group, last in ROWS.items() for number in range(1, last + 1)}
    assert Counter(claim.claim.row for claim in audit.wrong) == ERRORS
    unmeasured = {claim.claim.row for claim in audit.claims if claim.right is None}
    assert unmeasured >= ONLY_MEASURED
    assert {
        row for row in ONLY_MEASURED if any(o.right is not None for o in audit.claims if o.claim.row == row)
    } == set()
    assert audit.summary.endswith("7 wrong (A5, C2 4 times, C6, D4), 11 to measure.")


def test_audit_prints_the_corrections(audit: Audit) -> None:
    output = " ".join(item.correction for item in audit.wrong)
    assert "54.1 %" in output and "14,980,860 at L=4" in output
    for repaired in ("W_y.T @ (y_hat - y)", "db_y = y_hat - y", "1 - c_tilde^2", "occurs twice; drop one"):
        assert repaired in output
    assert "limit of large norms" in output and "spectral norm is 1" in output


def test_corrected_claims_are_right(audit: Audit) -> None:
    for item in audit.wrong:
        answers = tuple(CORRECTED.get(answer, answer) for answer in item.claim.answers)
        sizes = {**item.claim.sizes, **CORRECTED_SIZES.get(item.claim.of, {})}
        assert (answers, sizes) != (item.claim.answers, item.claim.sizes)
        changed = item.claim.model_copy(update={"answers": answers, "sizes": sizes})
        assert check_claim(changed).right, changed.command


def test_claim_data_contain_no_verdicts() -> None:
    folder = Path(str(files("lemma.checking"))) / "claims"
    for path in folder.glob("*.toml"):
        assert not VERDICTS.findall(path.read_text(encoding="utf-8")), path
    assert set(SourceClaim.model_fields) == {"row", "says", "check", "of", "answers", "sizes", "measure"}


def numeric_claims() -> list[SourceClaim]:
    """Return the right claims with numbers or formulas; one for each slow model."""
    seen: Counter[str] = Counter()
    choice = []
    for claim in load_claims():
        seen[claim.of] += claim.of in SLOW
        if claim.answers and seen[claim.of] <= 1 and not set(claim.answers) & set(CORRECTED):
            choice.append(claim)
    return choice


def mutate_claim(claim: SourceClaim) -> SourceClaim:
    """Return the claim with a number or formula changed to a wrong one."""
    last = claim.answers[-1]
    if claim.check in ("parameters", "flops", "trainable"):
        last = f"{last} + 1"
    elif claim.check == "gradient":
        name, _, expression = last.partition("=")
        last = f"{name}= 2 * ({expression})"
    elif claim.check == "shape":
        last = f"{last}×2"
    elif "%" in last:
        last = last.replace("0 %", "3 %")
    elif re.search(r"\d", last):
        last = re.sub(r"\d(?=\D*$)", lambda result: str((int(result[0]) + 3) % 10), last)
    else:
        last = last.replace("D", "A C")
    return claim.model_copy(update={"answers": (*claim.answers[:-1], last)})


@pytest.mark.parametrize("claim", numeric_claims(), ids=lambda claim: f"{claim.row} {claim.answers[-1][:30]}")
def test_mutated_claims_are_wrong(claim: SourceClaim) -> None:
    changed = mutate_claim(claim)
    assert changed.answers != claim.answers
    assert check_claim(changed).right is False, changed.command
