"""The trees of a text: those of a parser, or the spanning trees of a language model's attention."""

from lemma.data import Sentence
from lemma.errors import InputError, unknown
from lemma.looking.parses import HeadPicture, ParsedSentence, ParsedText
from lemma.looking.splitting import split_sentence
from lemma.looking.trees import attention_tree, check_heads, word_attention
from lemma.models.trees import head_pictures, predict_trees
from lemma.runs import Run

MOST_WORDS = 400  # of a sentence: scores grow with the square


def parse_text(
    run: Run, text: str, *, layer: int | None = None, head: int | None = None, relation: str | None = None
) -> ParsedText:
    """Draw the trees of a text, one sentence a line.

    Of a parser its own, with the picture of one `relation`'s head if asked for ("all" for every relation in the tree);
    of a language model the maximum spanning tree over the attention of one head, or over the mean of all.
    """
    sentences = _sentences(text)
    if run.spec.family == "parser":
        if layer is not None or head is not None:
            raise InputError("a parser has one tree a sentence; layer and head choose among a language model's heads.")
        return _parsed(run, sentences, relation)
    if relation is not None:
        raise InputError("relation shows a parser's head; a language model's heads have no relation. Give layer, head.")
    return _attended(run, sentences, layer, head)


def _sentences(text: str) -> list[list[str]]:
    sentences = [words for line in text.splitlines() if (words := split_sentence(line))]
    if not sentences:
        raise InputError("the text has no words: there is no tree to draw. As in: --text 'I prefer the morning flight'")
    longest = max(map(len, sentences))
    if longest > MOST_WORDS:
        raise InputError(
            f"a sentence has {longest:,} words, at most {MOST_WORDS} are drawn. Put each sentence on a line of its own."
        )
    return sentences


def _parsed(run: Run, sentences: list[list[str]], relation: str | None) -> ParsedText:
    lexicon = run.lexicon
    if relation not in (None, "all") and relation not in lexicon.relations:
        raise InputError(unknown("relation", str(relation), ["all", *lexicon.relations]))
    found = []
    for words, guess in zip(sentences, predict_trees(run.parser, lexicon, sentences), strict=True):
        asked = dict.fromkeys(guess.sentence.relations) if relation == "all" else [relation] if relation else []
        pictures = _pictures(run, words, list(asked))
        found.append(ParsedSentence(guess.sentence, guess.probabilities, pictures))
    return ParsedText(tuple(found), f"trees of {run.path.name}, a parser: maximum spanning trees with one root")


def _pictures(run: Run, words: list[str], relations: list[str]) -> tuple[HeadPicture, ...]:
    if not relations:
        return ()
    weights = head_pictures(run.parser, run.lexicon, words)
    return tuple(HeadPicture(name, tuple(words), weights[run.lexicon.number(name)]) for name in relations)


def _attended(run: Run, sentences: list[list[str]], layer: int | None, head: int | None) -> ParsedText:
    check_heads(run.model, layer, head)
    found = []
    for words in sentences:
        weights = word_attention(run.model, run.tokenizer, words).chosen(layer, head)
        found.append(ParsedSentence(Sentence(tuple(words), attention_tree(weights), ("_",) * len(words))))
    which = "the mean of all heads" if layer is None and head is None else _named(layer, head)
    return ParsedText(
        tuple(found),
        f"maximum spanning trees of A + Aᵀ, where A is the attention between words of {which} of {run.path.name}; no "
        "labels, and the root is the word attended to most on average",
    )


def _named(layer: int | None, head: int | None) -> str:
    if layer is None:
        return f"head {head} of every layer"
    return f"layer {layer}" + (f", head {head}" if head is not None else ", the mean of its heads")
