"""Trees from attention, alignment of words with tokens, and drawings of trees."""

import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest
import torch

from lemma.data.tokenizers import train_tokenizer
from lemma.data.treebanks import Sentence, split_words
from lemma.errors import InputError
from lemma.inspection.trees import (
    ParsedSentence,
    ParsedText,
    RelationHead,
    arc_levels,
    attention_tree,
    check_heads,
    draw_arcs,
    draw_svg_arcs,
    encode_words,
    measure_word_attention,
    merge_token_attention,
    most_attended,
    shuffle_attention,
)
from lemma.models.base import LanguageModel
from lemma.models.build import build
from lemma.report.text import display_width, set_text_width
from lemma.spec.data import BytePairs, Characters, Words
from lemma.spec.models import Decoder, Lstm
from treebanks import B1, tiny

TEXT = "\n".join(" ".join(sentence.words) for sentence in tiny())
TOKENIZERS = {spec.kind: train_tokenizer(spec, [TEXT]) for spec in (Characters(), Words(), BytePairs(vocabulary=270))}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_words_align_with_tokens_of_the_sentence(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    aligned = encode_words(B1.words, tokenizer)
    assert aligned.tokens.tolist() == tokenizer.encode(" ".join(B1.words)).tolist()
    for index, word in enumerate(B1.words):
        assert tokenizer.decode(aligned.select([index]).tokens).strip() == word


def test_characters_without_tokens_are_skipped() -> None:
    assert encode_words(["I", "日本"], TOKENIZERS["characters"]).bounds.tolist() == [0, 1, 2]


def test_word_attention_sums_over_keys_and_averages_queries() -> None:
    random = np.random.default_rng(0)
    weights = random.dirichlet(np.ones(6), size=(2, 6))
    spans = [(0, 2), (2, 3), (3, 6)]
    result = merge_token_attention(weights, np.array([0, 2, 3, 6]))
    for head in range(2):
        for a, (start, stop) in enumerate(spans):
            for b, (first, last) in enumerate(spans):
                rows = [weights[head, token, first:last].sum() for token in range(start, stop)]
                assert result[head, a, b] == pytest.approx(np.mean(rows))
    np.testing.assert_allclose(result.sum(-1), 1)


def test_word_attention_of_a_decoder_is_causal() -> None:
    tokenizer = TOKENIZERS["byte-pairs"]
    model = build(Decoder(V=tokenizer.vocabulary, width=16, depth=2, heads=2, context=64))
    result = measure_word_attention(model, tokenizer, B1.words)
    assert result.names[1] == "layer 0 head 1" and result.weights.shape == (4, 7, 7)
    assert np.triu(result.weights, 1).max() == 0
    np.testing.assert_allclose(result.weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(result.select(1, 0), result.weights[2])
    np.testing.assert_allclose(result.select(None, None), result.weights.mean(0))
    with pytest.raises(InputError, match=r"layer 2, head 0: the model has 2 layers \(0 to 1\) of 2 heads \(0 to 1\)"):
        result.select(2, 0)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_check_heads_uses_recorded_attention(positions: str) -> None:
    model = build(Decoder(V=9, width=8, depth=3, heads=1, context=2, positions=positions))
    seen = [(layer, head) for layer in range(-1, 5) for head in range(-1, 3) if has_head(model, layer, head)]
    assert seen == [(0, 0), (1, 0), (2, 0)] and has_head(model, None, 0) and not has_head(model, None, 1)
    with pytest.raises(InputError, match=r"no layer 3: the model has 3 layers \(0 to 2\) of one head \(0\)\."):
        check_heads(model, 3, None)
    with pytest.raises(InputError, match="family lstm has no attention"):
        check_heads(build(Lstm(V=9, width=4, hidden=4)), None, None)


def has_head(model: LanguageModel, layer: int | None, head: int | None) -> bool:
    try:
        check_heads(model, layer, head)
    except InputError:
        return False
    return True


def test_missing_attention_and_overlong_sentences_are_refused() -> None:
    tokenizer = TOKENIZERS["words"]
    with pytest.raises(InputError, match="family lstm has no attention"):
        measure_word_attention(build(Lstm(V=tokenizer.vocabulary, width=4, hidden=4)), tokenizer, B1.words)
    with pytest.raises(InputError, match="reads 1 to 4 at once"):
        measure_word_attention(build(Decoder(V=tokenizer.vocabulary, width=4, heads=1, context=4)), tokenizer, B1.words)


def test_head_word_attention_recovers_the_undirected_tree() -> None:
    weights = np.full((7, 7), 0.01)
    for head, dependent, _ in B1.arcs():
        if head:
            weights[dependent - 1, head - 1] = 1.0
    tree = attention_tree(weights)
    edges = {frozenset((head, index)) for index, head in enumerate(tree, start=1) if head}
    assert edges == {frozenset((g, d)) for g, d, _ in B1.arcs() if g}
    assert (most_attended(weights[None])[0] == np.array(B1.heads))[np.array(B1.heads) > 0].all()


def test_shuffled_attention_respects_the_mask() -> None:
    weights = np.tril(np.random.default_rng(1).random((3, 8, 8)))
    dealt = shuffle_attention(weights, seed=0)
    np.testing.assert_allclose(np.sort(dealt, -1), np.sort(weights, -1))
    np.testing.assert_array_equal(dealt > 0, weights > 0)
    assert (dealt != weights).any() and (shuffle_attention(weights, seed=0) == dealt).all()


def test_overlapping_arcs_have_different_heights() -> None:
    arcs = [(head, index) for index, head in enumerate(B1.heads, start=1) if head]
    height = arc_levels(arcs)
    for arc in arcs:
        for other in arcs:
            separate = max(arc) < min(other) or max(other) < min(arc)
            assert arc == other or separate or height[arc] != height[other]


def test_terminal_drawing_of_b1_matches_expected_text() -> None:
    samples = draw_arcs(B1.words, B1.heads, B1.relations)
    assert samples.splitlines() == [
        "      ┌─► I        nsubj",
        "┌─────┴── prefer   root",
        "│   ┌───► the      det",
        "│   │ ┌─► morning  nmod",
        "└─┬─┴─┴─► flight   dobj",
        "  │   ┌─► through  case",
        "  └───┴─► Denver   nmod",
    ]
    assert draw_arcs(["一人"], [0], ["root"]) == " 一人  root"


def fan_tree(size: int) -> ParsedSentence:
    """Return a tree in which the last word is the head of every other word."""
    words = tuple(f"w{index}日" for index in range(1, size + 1))
    return ParsedSentence(Sentence(words, (*(size,) * (size - 1), 0), (*("dep",) * (size - 1), "root")))


@pytest.mark.parametrize(("size", "columns", "drawn"), [(20, 120, True), (20, 40, False), (61, 500, False)])
def test_too_wide_tree_is_printed_as_a_table(size: int, columns: int, drawn: bool) -> None:
    parsed = fan_tree(size)
    lines = parsed.draw(columns).splitlines()
    assert max(map(display_width, lines)) <= max(columns, 80) and ("►" in "".join(lines)) == drawn
    assert ("--out tree.svg" in lines[-1]) != drawn
    if not drawn:
        read = [line.split() for line in lines[1:-1]]
        assert [(int(row[0]), row[1]) for row in read] == list(enumerate(parsed.sentence.words, start=1))
        assert [int(row[2]) for row in read] == list(parsed.sentence.heads)
        assert [row[-1] for row in read] == list(parsed.sentence.relations)


def test_str_fits_the_width_and_files_hold_the_drawing(tmp_path: Path) -> None:
    text = ParsedText((fan_tree(30),), "about")
    with set_text_width(50):
        assert "►" not in str(text) and max(map(display_width, str(text).splitlines())) <= 50
    with set_text_width(200):
        assert "►" in str(text)
    assert text.save(tmp_path / "wide.txt") == tmp_path / "wide.txt"
    assert ParsedText((fan_tree(100),), "about").save(str(tmp_path / "wider.txt")).read_text().count("►") == 99


def test_wide_figures_scroll_within_the_page() -> None:
    tree = fan_tree(100).sentence
    relation_head = RelationHead("dep", tree.words, np.zeros((101, 101)))
    text = ParsedText((ParsedSentence(tree, None, (relation_head,)),), "about")
    for page, width in ((text.html(), ("<svg", "<table")), (text._repr_html_(), ("<svg",))):
        for tag in width:
            (before,) = page.split(tag)[:-1]
            opened = before[before.rindex("<figure") :]
            assert "overflow-x:auto" in opened and 'tabindex="0"' in opened and "</figure>" not in opened


def test_svg_is_well_formed_for_hostile_words() -> None:
    words = ("<b>&", '"quoted"', "日本", "a" * 40)
    drawing = xml.fromstring(draw_svg_arcs(words, (2, 0, 2, 1), ("x<y", "root", "", "dep")))
    texts = [element.text for element in drawing.iter() if element.tag.endswith("text")]
    assert set(words) <= set(texts) and "x<y" in texts
    assert not [name for element in drawing.iter() for name in element.attrib if name.startswith("on")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("I prefer the morning flight through Denver", list(B1.words)),
        ('He can\'t say "no".', ["He", "ca", "n't", "say", '"', "no", '"', "."]),
        ("It's 3.5%!", ["It", "'s", "3.5", "%", "!"]),
        ("...", ["..."]),
        ("  ", []),
    ],
)
def test_split_words_separates_punctuation(line: str, words: list[str]) -> None:
    assert split_words(line) == words


def test_attention_of_one_word_is_a_single_node_tree() -> None:
    assert attention_tree(torch.ones(1, 1).numpy()) == (0,)
