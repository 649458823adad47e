"""Text as tokens: tokenizers, corpora, labels, pairs, trees, splits, the token store, batches. No torch here."""

from lemma.data.batches import RandomWindows, Streams
from lemma.data.conllu import Sentence, Treebank, read_conllu, to_conllu
from lemma.data.corpora import CORPORA, Corpus
from lemma.data.dataset import Dataset, prepare, read_tokens
from lemma.data.examples import BucketedExamples, Examples, Rows
from lemma.data.home import data_home
from lemma.data.label_table import LabelledText
from lemma.data.labelled import LABELLED
from lemma.data.labels import Labelled, LabelsData, prepare_labels, read_labels
from lemma.data.learn import learn_tokenizer
from lemma.data.lexicon import Lexicon
from lemma.data.library import CorpusRow, corpora_table
from lemma.data.masking import MaskedWindows
from lemma.data.packaged import Packaged
from lemma.data.pair_table import Pair
from lemma.data.paired import PAIRED
from lemma.data.pairs import Pairs, PairsData, prepare_pairs, read_pairs
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
    "LABELLED",
    "PAIRED",
    "TREEBANKS",
    "BucketedExamples",
    "BucketedSentences",
    "Corpus",
    "CorpusRow",
    "Dataset",
    "Examples",
    "Labelled",
    "LabelledText",
    "LabelsData",
    "Lexicon",
    "MaskedWindows",
    "Packaged",
    "Pair",
    "Pairs",
    "PairsData",
    "Progress",
    "RandomWindows",
    "Rows",
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
    "prepare_labels",
    "prepare_pairs",
    "prepare_treebank",
    "read_conllu",
    "read_labels",
    "read_pairs",
    "read_pieces",
    "read_tokens",
    "read_trees",
    "to_conllu",
]
