"""Text as tokens: tokenizers, corpora, labels, pairs, trees, splits, the token store, batches. No torch here."""

from lemma.data.batches import RandomWindows, Streams
from lemma.data.conllu import Sentence, Treebank, read_conllu, to_conllu
from lemma.data.corpora import CORPORA, Corpus
from lemma.data.dataset import Dataset, prepare, read_tokens
from lemma.data.examples import BucketedExamples, Examples, Rows
from lemma.data.graphs.compressed import Compressed
from lemma.data.graphs.graph_data import GraphData, GraphNodes, prepare_graph, read_graph
from lemma.data.graphs.named import GRAPHS
from lemma.data.home import data_home
from lemma.data.images.captioned import Captioned
from lemma.data.images.decoding import read_picture, read_pictures, thumbnail
from lemma.data.images.emoji import PICTURES
from lemma.data.images.folder import picture_files
from lemma.data.images.listing import Picture
from lemma.data.images.prepared import ImagesData, prepare_images, read_images
from lemma.data.label_table import LabelledText
from lemma.data.labelled import LABELLED
from lemma.data.labelled_conllu import holds_trees
from lemma.data.labelled_trees import Drawer, DrawnText, LabelledTrees, drawn_text, trees_in
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
    "GRAPHS",
    "LABELLED",
    "PAIRED",
    "PICTURES",
    "TREEBANKS",
    "BucketedExamples",
    "BucketedSentences",
    "Captioned",
    "Compressed",
    "Corpus",
    "CorpusRow",
    "Dataset",
    "Drawer",
    "DrawnText",
    "Examples",
    "GraphData",
    "GraphNodes",
    "ImagesData",
    "Labelled",
    "LabelledText",
    "LabelledTrees",
    "LabelsData",
    "Lexicon",
    "MaskedWindows",
    "Packaged",
    "Pair",
    "Pairs",
    "PairsData",
    "Picture",
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
    "drawn_text",
    "encode_trees",
    "holds_trees",
    "learn_tokenizer",
    "picture_files",
    "prepare",
    "prepare_graph",
    "prepare_images",
    "prepare_labels",
    "prepare_pairs",
    "prepare_treebank",
    "read_conllu",
    "read_graph",
    "read_images",
    "read_labels",
    "read_pairs",
    "read_picture",
    "read_pictures",
    "read_pieces",
    "read_tokens",
    "read_trees",
    "thumbnail",
    "to_conllu",
    "trees_in",
]
