"""The runs of a study and what follows from them: the table, the verdicts on its claims, the conclusion."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from lemma.spec import StudySpec
from lemma.studies.claims import Judgement, judge
from lemma.studies.conclusion import conclude
from lemma.studies.more_shown import sentences
from lemma.studies.outcome import Outcome
from lemma.studies.row import Row
from lemma.studies.table import Table, make_table


@dataclass(frozen=True)
class Findings:
    """All runs of a study, finished, failed or waiting, in the order of its grid."""

    spec: StudySpec
    runs: tuple[Outcome, ...]
    data: Mapping[str, str]
    """What the text is, in words: name, tokenizer, split, hash."""
    hardware: Mapping[str, str]

    @cached_property
    def table(self) -> Table:
        """The rows of the study with their means and intervals."""
        return make_table(self.runs)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the table."""
        return self.table.rows

    @cached_property
    def judgements(self) -> tuple[Judgement, ...]:
        """What the numbers say of the study's claims."""
        return tuple(judge(claim, self.rows) for claim in self.spec.claims)

    @cached_property
    def conclusion(self) -> tuple[str, ...]:
        """What the numbers say, in sentences."""
        return (*conclude(self.table, self.judgements), *sentences(self.spec, self.rows))

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The runs that failed, each with its reason."""
        return tuple(run for run in self.runs if run.reason)
