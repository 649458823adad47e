"""From a sheet and answers to marks."""

from pathlib import Path

from lemma.errors import InputError, unknown
from lemma.ledger.counting import count
from lemma.ledger.sheets.answers import Answers, read_answers
from lemma.ledger.sheets.judging import judge
from lemma.ledger.sheets.marked import Marked
from lemma.ledger.sheets.marks import Mark
from lemma.ledger.sheets.sheet import Question, Sheet, read_sheet
from lemma.ledger.sources import subject_of

LONGEST_SHOWN = 2000


def mark(sheet: Path | str, answers: Path | str) -> Marked:
    """Mark a student's answers to a sheet; both are files in TOML or Markdown."""
    asked, given = read_sheet(Path(sheet)), read_answers(Path(answers))
    for question in asked.questions:
        _refuse_unanswerable(Path(sheet), question)
    marks = tuple(_marked(question, given) for question in asked.questions)
    return Marked(asked.title, given.student, marks, _strangers(asked, given))


def _refuse_unanswerable(path: Path, question: Question) -> None:
    """What the model cannot be asked is the sheet's mistake and not the student's."""
    if question.kind == "gradient":
        return
    asked = question.quantity if question.kind == "number" else question.kind
    try:
        account = count(subject_of(question.model, question.words), (asked,))
        if question.change:
            judge(question, "1 %")
    except InputError as error:
        field = "change" if question.change else "model"
        raise InputError(f"{path}: question {question.id}: {field}: {error}") from None
    figure = account.quantities[asked]
    if figure.at(account.symbols) is None or (figure.refused and question.kind != "number"):
        raise InputError(f"{path}: question {question.id}: kind: the {asked} of {question.model} follow no formula.")


def _marked(question: Question, answers: Answers) -> Mark:
    key = question.id.casefold()
    answer = answers.given.get(key, "")
    blank = Mark(question.id, question.text, answer[:LONGEST_SHOWN], "not answered", "", 0, question.points)
    if key in answers.unreadable:
        return blank.become("unreadable", f"Cannot be read: {answers.unreadable[key]}.")
    if not answer:
        return blank
    try:
        judged = judge(question, answer)
    except InputError as error:
        return blank.become("unreadable", f"Cannot be read: {error}")
    except Exception as error:  # nothing a student writes may stop the marking of the rest
        return blank.become("unreadable", f"Cannot be judged ({type(error).__name__}).")
    verdict = "right" if judged.share == 1 else "partly right" if judged.share else "wrong"
    points = round(judged.share * question.points, 2)
    if question.show_answer:
        return blank.become(verdict, judged.reason, points, judged.right)
    return blank.become(verdict, judged.hint, points)


def _strangers(sheet: Sheet, answers: Answers) -> tuple[str, ...]:
    """What is said of answers to questions that are not asked."""
    ids = [question.id for question in sheet.questions]
    asked = {name.casefold() for name in ids}
    return tuple(unknown("question", name[:100], ids) for key, name in answers.names.items() if key not in asked)
