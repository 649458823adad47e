"""Searching by what both towers see: the index of pictures, the exact ranking, what was found."""

from lemma.retrieval.asking import Wanted, search_run
from lemma.retrieval.embedding import Embedder
from lemma.retrieval.index import Index
from lemma.retrieval.pictures import open_pictures
from lemma.retrieval.ranking import Nearest, find
from lemma.retrieval.result import Answer, Counts, Hit, SearchResult, refuse_target
from lemma.retrieval.updating import Updated, update_index

__all__ = [
    "Answer",
    "Counts",
    "Embedder",
    "Hit",
    "Index",
    "Nearest",
    "SearchResult",
    "Updated",
    "Wanted",
    "find",
    "open_pictures",
    "refuse_target",
    "search_run",
    "update_index",
]
