"""Text as tokens: tokenizers, corpora, splits, the token store and the order of batches. No torch in this room."""

from lemma.data.batches import RandomWindows, Streams
from lemma.data.conllu import Sentence, Treebank, read_conllu, to_conllu
from lemma.data.corpora import CORPORA, Corpus
from lemma.data.dataset import Dataset, prepare, read_tokens
from lemma.data.home import data_home
from lemma.data.learn import learn_tokenizer
from lemma.data.lexicon import Lexicon
from lemma.data.library import CorpusRow, corpora_table
from lemma.data.progress import Progress
from lemma.data.reading import read_pieces
from lemma.data.sections import Section
from lemma.data.store import TokenStore
from lemma.data.tokenizer import Tokenizer
from lemma.data.treebank import TreebankData, TreebankSource, prepare_treebank, read_trees
from lemma.data.treebanks import TREEBANKS
from lemma.data.trees import BucketedSentences, Trees, encode_trees

__all__ = [
    "CORPORA",
    "TREEBANKS",
    "BucketedSentences",
    "Corpus",
    "CorpusRow",
    "Dataset",
    "Lexicon",
    "Progress",
    "RandomWindows",
    "Section",
    "Sentence",
    "Streams",
    "TokenStore",
    "Tokenizer",
    "Treebank",
    "TreebankData",
    "TreebankSource",
    "Trees",
    "corpora_table",
    "data_home",
    "encode_trees",
    "learn_tokenizer",
    "prepare",
    "prepare_treebank",
    "read_conllu",
    "read_pieces",
    "read_tokens",
    "read_trees",
    "to_conllu",
]
