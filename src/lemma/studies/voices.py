"""What the models of a study say: samples, and the loop each falls into at temperature 0."""

from collections.abc import Sequence
from html import escape

from lemma.studies.outcome import Talk
from lemma.studies.page import card, cards, paragraph, section
from lemma.studies.row import Row

SAMPLES = "One sample of each model, of its first seed, at temperature 0.8; what stands in grey is the prompt."
LOOPS = (
    "At temperature 0 a model always takes the likeliest token, and sooner or later repeats itself. The first round of "
    "the loop is dark, its repetitions are light. A loop is proved where the model's whole state came back, for then "
    "all that follows must come back too."
)
ROUNDS, CHARACTERS, LINES = 2, 60, 6  # of the repetitions so many rounds or characters are shown, in so many lines
VISIBLE = {ord(" "): "␣", ord("\n"): "↵", ord("\t"): "⇥"}  # how a loop of white space alone is shown


def samples(rows: Sequence[Row]) -> str:
    """A sample of each row."""
    spoken = [card(row.title, _text(row.measured[0].sample)) for row in rows if row.measured]
    return section("Samples", paragraph(SAMPLES, "note"), cards(spoken)) if spoken else ""


def loops(rows: Sequence[Row]) -> str:
    """The greedy generation of each row, its loop marked."""
    greedy = [(row.title, row.measured[0].greedy) for row in rows if row.measured]
    spoken = [card(title, _looping(talk), loop_in_words(talk)) for title, talk in greedy]
    return section("The loop each falls into", paragraph(LOOPS, "note"), cards(spoken)) if spoken else ""


def loop_in_words(talk: Talk) -> str:
    """Say where a loop begins, how long it is, and whether and by which state it is proved."""
    loop = talk.loop
    if loop is None:
        return "No loop as far as this goes."
    every = "every token" if loop.period == 1 else f"every {loop.period} tokens"
    proof = f"Proved: {loop.state} came back." if loop.proved else f"Not proved: {loop.state} did not come back."
    return f"Onset {loop.onset}, period {loop.period}: from token {loop.onset} on it repeats {every}. {proof}"


def _text(talk: Talk) -> str:
    return f"<pre>{_prompt(talk.prompt)}{escape(talk.text)}</pre>"


def _prompt(prompt: str) -> str:
    return f'<span class="prompt">{escape(prompt)}</span>' if prompt else ""


def _looping(talk: Talk) -> str:
    if talk.loop is None:
        return _text(talk)
    begin, end = talk.loop.begin, talk.loop.end
    before, once, again = talk.text[:begin], talk.text[begin:end], talk.text[end:]
    shown = "".join(again[: max(ROUNDS * len(once), CHARACTERS)].splitlines(keepends=True)[:LINES])
    rest = " …" if len(shown) < len(again) else ""
    if not once.strip():
        once, shown = (part.translate(VISIBLE) for part in (once, shown))
    repeated = f'<mark class="again">{escape(shown)}</mark>{rest}' if shown else ""
    return f"<pre>{_prompt(talk.prompt)}{escape(before)}<mark>{escape(once)}</mark>{repeated}</pre>"
