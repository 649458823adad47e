"""Teacher mode: a sheet of questions, a student's answers, and what they are worth.

A sheet is TOML or Markdown. In TOML:

    title = "Week 3"
    show_answer = false            # for all questions that do not say otherwise

    [[questions]]
    id = "Q1"
    text = "How many parameters has Bengio's model?"
    points = 2
    kind = "parameters"            # or flops, number, gradient
    model = "feed-forward"
    words = "N=5 d=64"             # or a table

    [[questions]]
    id = "Q2"
    kind = "gradient"
    cell = "rnn"
    lines = ["dU", "db2"]          # the gradients asked for
    partial = true                 # points for every right one

In Markdown the title is the first heading and every question a heading of the second level, with the same words as
lines `key: value` or in a block fenced as toml; all other lines are its text:

    # Week 3
    ## Q1 (2 points)
    How many parameters has Bengio's model?
    kind: parameters
    model: feed-forward

A number is asked for by `kind = "number"`, `quantity = "parameters"` and, for a change in per cent,
`change = "from 2 to 4 layers"`.

The student's answers are TOML (`student = "…"` and a table `[answers]` with a text, a number or a list of lines for
every question) or Markdown (`# name`, then `## Q1` with the answer below it, fenced or not).
"""

from lemma.ledger.sheets.answers import Answers, read_answers
from lemma.ledger.sheets.marked import Marked
from lemma.ledger.sheets.marking import mark
from lemma.ledger.sheets.marks import Mark
from lemma.ledger.sheets.sheet import Question, Sheet, read_sheet

__all__ = ["Answers", "Mark", "Marked", "Question", "Sheet", "mark", "read_answers", "read_sheet"]
