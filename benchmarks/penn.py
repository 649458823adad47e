"""Does the preset `penn-rnn` train long enough? Validation perplexity after several numbers of steps (problem D5).

Penn Treebank cannot be shipped, so two texts of its size are prepared as it was: lower case, no punctuation, numbers as
N, a sentence per line. Each is read with a vocabulary of 10,000 words.

Run: python -m benchmarks.penn [--steps N …]
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import lemma
from benchmarks.compare import machine
from lemma.data.corpora import CORPORA, fetch_corpus

WORDS = 929_589 + 73_760 + 82_430  # of Penn Treebank's three splits
SOURCE = 164.0  # perplexity that the source of problem D5 reports
RECENT = 120  # speeches, about 820,000 words


def prepare_sentences(text: str, limit: int = WORDS) -> str:
    """Write a text as Penn Treebank's language-modelling version is written, up to `limit` words.

    >>> prepare_sentences("In 1990, we met; it rained. Yes.")
    'in N we met\\nit rained\\n'
    """
    lines, count = [], 0
    for sentence in re.split(r"(?<=[.!?;])\s+|\n+", text):
        words = [re.sub(r"^\d.*", "N", word) for word in re.findall(r"[a-z']+|\d[\d.,]*", sentence.lower())]
        if len(words) > 1:
            lines.append(" ".join(words))
            count += len(words) + 1  # with the end of the sentence
        if count >= limit:
            break
    return "\n".join(lines) + "\n"


def read_files(paths: Iterable[Path]) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.penn")
    parser.add_argument("--steps", type=int, nargs="+", help="also train for these numbers of steps")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("penn: skipped; on a CPU a training takes an hour.")
        return 0
    preset = lemma.choose("penn-rnn", {}).recipe.steps
    wikipedia = [path for path in fetch_corpus(CORPORA["wikitext-2"]) if "train" in path.name]
    speeches = sorted(fetch_corpus(CORPORA["speeches"]))[-RECENT:]
    missed = 0
    print(f"{'text':<12}{'steps':>8}{'best step':>11}{'perplexity':>12}")
    with TemporaryDirectory() as folder:
        for name, paths in {"wikipedia": wikipedia, "speeches": speeches}.items():
            text = Path(folder) / f"{name}.txt"
            text.write_text(prepare_sentences(read_files(paths)), encoding="utf-8")
            for steps in dict.fromkeys([preset, *(options.steps or ())]):
                out = Path(folder) / f"{name}-{steps}"
                run = lemma.train("penn-rnn", text=text, out=out, progress=False, steps=steps)
                perplexity = run.best_perplexity or float("inf")
                missed += steps == preset and perplexity >= SOURCE
                print(f"{name:<12}{steps:>8,}{run.best_step or 0:>11,}{perplexity:>12.1f}", flush=True)
    return missed


if __name__ == "__main__":
    print(machine())
    sys.exit(main(sys.argv[1:]))
