"""Names for the symbols of byte-pair encoding: letters where there are enough, else what they spell."""

from string import ascii_uppercase

from lemma.looking.worked.merging import Merging, Pair
from lemma.looking.worked.numerals import printable


class Names:
    """The name and the spelling of every symbol by its number."""

    def __init__(self, merging: Merging, end_of_word: str, letters: bool) -> None:
        ends = [end_of_word] if end_of_word else []
        self.spelled = [*map(printable, merging.alphabet), *ends]
        for left, right in merging.merged:
            self.spelled.append(self.spelled[left] + self.spelled[right])
        free = [letter for letter in ascii_uppercase if letter not in merging.alphabet]
        made = len(merging.merged)
        self.letters = letters and made <= len(free)
        """Whether merged symbols are called A, B, C …, letters that the text does not use."""
        named = free[:made] if self.letters else self.spelled[merging.first_merged :]
        self.names = [*self.spelled[: merging.first_merged], *named]

    def pair(self, pair: Pair) -> str:
        """Two names side by side."""
        return f"{self.names[pair[0]]} {self.names[pair[1]]}"
