"""The scanner shared by two languages: normalized characters, errors with positions."""

import pytest

from lemma.checking.tokens import SourceText, derivation_tokens, formula_tokens
from lemma.errors import InputError


@pytest.mark.parametrize("cut", [formula_tokens, derivation_tokens], ids=lambda cut: cut.__name__)
@pytest.mark.parametrize(("text", "kinds"), [("d − h·𝑑", ["d", "-", "h", "*", "d"]), ("(d+1)/2", list("(d+1)/2"))])
def test_both_languages_normalize_the_same_characters(cut, text: str, kinds: list[str]) -> None:
    *result, end = cut(SourceText(text, "here"))
    assert [token.text for token in result] == kinds
    assert [token.position for token in result] == [index for index, sign in enumerate(text) if sign != " "]
    assert (end.kind, end.position) == ("end", len(text))


@pytest.mark.parametrize("cut", [formula_tokens, derivation_tokens], ids=lambda cut: cut.__name__)
def test_invalid_character_is_shown_at_its_position(cut) -> None:
    with pytest.raises(InputError) as mistake:
        cut(SourceText("d + ? + h", "line 3, column"))
    first, line, caret = str(mistake.value).split("\n")
    assert first.startswith("line 3, column 5: '?' is not")
    assert line[caret.index("^")] == "?"
