"""Problem B1: the head of a relation attends from a head word to its dependent; the same scores give a parser."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lemma.api as lemma
from lemma.cli.main import app
from lemma.data.treebanks import Lexicon, Trees, format_conllu
from lemma.errors import InputError, RunError, SpecError
from lemma.models.build import build
from lemma.models.parser import (
    ParserModel,
    log_arc_probabilities,
    log_attention,
    predict_trees,
    relation_attention,
)
from lemma.spec.models import Parser
from lemma.tasks.parsing import arc_loss, attention_loss, attention_targets
from treebanks import B1, tiny

RELATIONS = ["nsubj", "dobj", "det", "nmod", "case", "root"]
SMALL = {
    "width": 12,
    "buckets": 300,
    "encoder.hidden": 16,
    "hidden": 24,
    "head_width": 6,
    "shared_width": 8,
    "word_dropout": 0.0,
    "minimum_count": 1,
}


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return Lexicon(sorted({word.lower() for word in B1.words}), RELATIONS, buckets=100)


def test_b1_relation_attention_is_exact(lexicon: Lexicon) -> None:
    """Head `dobj` attending from `prefer` is 1 on `flight`, else 0; and so for every relation."""
    _, targets = Trees((B1,), lexicon).batch([0])
    right = attention_targets(torch.from_numpy(targets), len(RELATIONS))[0].numpy()
    words = ["(top)", *B1.words]
    dobj = right[RELATIONS.index("dobj"), words.index("prefer")]
    assert dobj.tolist() == [float(word == "flight") for word in words]
    for number, relation in enumerate(RELATIONS):
        for head, word in enumerate(words):
            dependents = [d for g, d, r in B1.arcs() if (g, r) == (head, relation)] or [0]
            expected = [(index in dependents) / len(dependents) for index in range(len(words))]
            assert right[number, head].tolist() == expected, (relation, word)
    assert right[RELATIONS.index("nmod"), words.index("flight")].tolist() == [0, 0, 0, 0, 0.5, 0, 0, 0.5]


def test_arc_and_attention_losses_match_wordwise_sums(lexicon: Lexicon) -> None:
    sentences = [B1, *tiny()[1:3]]
    _, targets = Trees(tuple(sentences), lexicon).batch([0, 1, 2])
    size, count = targets.shape[1], sum(len(s.words) for s in sentences)
    scores = torch.randn(3, len(RELATIONS), size + 1, size, dtype=torch.float64)
    null = torch.randn(len(RELATIONS), dtype=torch.float64)
    joint = attended = 0.0
    for row, sentence in enumerate(sentences):
        n = len(sentence.words)
        table = scores[row, :, : n + 1, :n].numpy().copy()
        for d in range(n):
            column = np.delete(table[:, :, d], d + 1, axis=1)  # no word is its own head
            gold = table[RELATIONS.index(sentence.relations[d]), sentence.heads[d], d]
            joint -= gold - np.log(np.exp(column).sum())
        for r in range(len(RELATIONS)):
            for g in range(n + 1):
                line = np.concatenate([[null[r].item()], table[r, g]])
                log = line - np.log(np.exp(line).sum())
                result = [d for gg, d, name in sentence.arcs() if (gg, name) == (g, RELATIONS[r])] or [0]
                attended -= np.mean([log[d] for d in result])
    goal = torch.from_numpy(targets)
    assert arc_loss(scores, goal).item() == pytest.approx(joint / count)
    assert attention_loss(scores, null, goal).item() == pytest.approx(attended / count, rel=1e-6)


def test_arc_and_attention_scores_are_normalized(lexicon: Lexicon) -> None:
    scores, present = torch.randn(2, 6, 5, 4), torch.tensor([[True] * 4, [True, True, False, False]])
    parser = log_arc_probabilities(scores, present).exp()
    torch.testing.assert_close(parser.sum((1, 2))[present], torch.ones(6))
    # Neither padding nor the word itself is a head.
    assert parser[1, :, 3:].max() == 0 and parser[0, :, 1, 0].max() == 0
    heads = log_attention(scores, torch.zeros(6), present).exp()
    torch.testing.assert_close(heads.sum(-1), torch.ones(2, 6, 5))
    assert heads[1, :, :, 3:].max() == 0


@pytest.mark.parametrize("encoder", ["bilstm", "transformer"])
def test_parse_does_not_depend_on_the_batch(encoder: str) -> None:
    lexicon = Lexicon.from_sentences(tiny(), 1, 100)
    small = {"kind": encoder, "depth": 2, **({"hidden": 8} if encoder == "bilstm" else {"width": 16, "heads": 2})}
    model = build(
        Parser(vocabulary=lexicon.vocabulary, relations=len(lexicon.relations), buckets=100, width=8, encoder=small)
    )
    together = predict_trees(model, lexicon, [sentence.words for sentence in tiny()])
    for sentence, result in zip(tiny(), together, strict=True):
        (single,) = predict_trees(model, lexicon, [sentence.words])
        assert single.sentence == result.sentence
        assert single.probabilities == pytest.approx(result.probabilities, abs=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("b1")
    path = folder / "tiny.conllu"
    path.write_text(format_conllu(tiny()))
    settings = {"steps": 150, "batch": 16, "dropout": 0.0, "warm_up": 10, "learning_rate": 1e-2, "attention_loss": 1.0}
    lemma.train(
        "parser",
        treebank=path,
        dev=path,
        out=folder / "run",
        progress=False,
        evaluate_every=75,
        device="cpu",
        **settings,
        **SMALL,
    )
    return folder / "run"


def test_tiny_parser_overfits_a_tiny_treebank(run: Path) -> None:
    score = lemma.evaluate(run, treebank=run.parent / "tiny.conllu", progress=False)
    assert (score.uas, score.las, score.attended) == (100, 100, 100)
    assert score.to_dict()["protocol"]["scored"] == "all words, punctuation too"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["las"] == 100 and rows[-1]["loss"] < 0.1 and rows[-1]["attention"] < rows[0]["attention"]
    assert {"spec.toml", "recipe.toml", "lexicon.json", "model.safetensors"} <= {path.name for path in run.iterdir()}


def test_trained_relation_heads_attend_to_their_dependents(run: Path) -> None:
    loaded = lemma.load(run, "cpu")
    weights = relation_attention(loaded.require(ParserModel, "a parser"), loaded.lexicon, B1.words)
    positions = ["(nothing)", *B1.words]
    prefer = weights[loaded.lexicon.relation_id("dobj"), positions.index("prefer")]
    assert prefer[positions.index("flight")] > 0.9
    for head, dependent, relation in B1.arcs():
        fraction = 2 if relation == "nmod" else 1  # flight has two dependents
        assert weights[loaded.lexicon.relation_id(relation), head, dependent] > 0.9 / fraction - 0.05, relation


def test_look_parse_renders_in_every_format(run: Path, tmp_path: Path) -> None:
    text = " ".join(B1.words)
    done = CliRunner().invoke(app, ["look", "parse", str(run), "--text", text, "--relation", "dobj"])
    assert done.exit_code == 0, done.output
    assert "└─┬─┴─┴─► flight   dobj" in done.output
    assert re.search(r"from prefer: flight (0\.9\d|1\.00)\n", done.output)
    output = CliRunner().invoke(app, ["look", "parse", str(run), "--text", text, "--json"])
    (tree,) = json.loads(output.output)["sentences"]
    assert "trees of run, a parser: " in json.loads(output.output)["about"]
    assert tuple(tree["heads"]) == B1.heads and tuple(tree["relations"]) == B1.relations
    for name in ("tree.svg", "tree.html", "tree.conllu", "tree.json", "tree.txt"):
        seen = lemma.look("parse", run, text=text)
        assert seen.save(tmp_path / name) == tmp_path / name
        assert "flight" in (tmp_path / name).read_text()
    with pytest.raises(InputError, match="Did you mean"):
        seen.save(tmp_path / "tree.svgg")


def test_evaluate_json_contains_relations_and_baselines(run: Path) -> None:
    words = ["evaluate", str(run), "--treebank", str(run.parent / "tiny.conllu"), "--json"]
    done = CliRunner().invoke(app, words)
    output = json.loads(done.stdout)
    assert output["uas"] == output["las"] == 100 and output["without_punctuation"]["las"] == 100
    assert {row["relation"] for row in output["relations"]} == {*RELATIONS, "punct"}
    assert set(output["baselines"]) == {"on the word before", "on the word after"}


def run_command(*words: str | Path) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    output = done.stderr + (str(done.exception) if done.exception else "")
    return done.exit_code, done.stdout, " ".join(output.split())


def test_evaluate_limits_sentences_and_refuses_inapplicable_options(run: Path) -> None:
    code, out, _ = run_command("evaluate", run, "--treebank", run.parent / "tiny.conllu", "--limit", "1", "--json")
    assert code == 0 and (json.loads(out)["sentences"], json.loads(out)["words"]) == (1, len(B1.words))
    absent = run.parent / "absent.conllu"  # invalid settings are reported before a missing treebank
    for option in ("--layer", "--head"):
        assert (
            "--layer and --head choose among a language model's"
            in run_command("evaluate", run, "--treebank", absent, option, "0")[2]
        )
    for option in ("--context", "--stride"):
        assert "for perplexity" in run_command("evaluate", run, "--treebank", absent, option, "8")[2]
    assert "at least one sentence" in run_command("evaluate", run, "--treebank", absent, "--limit", "0")[2]


def test_generate_refuses_a_parser(run: Path) -> None:
    code, out, output = run_command("generate", run, "--prompt", "hi")
    assert code != 0 and out == "" and "not a language model" in output


def test_train_requires_treebank_for_parser_and_text_for_others(run: Path, tmp_path: Path) -> None:
    settings = ("--treebank", run.parent / "tiny.conllu", "--text", "shakespeare", "--out", tmp_path / "x", "steps=1")
    assert "--text is not for parser, which is trained on --treebank" in run_command("train", "parser", *settings)[2]
    assert "--treebank is not for lstm, which is trained on --text" in run_command("train", "lstm", *settings)[2]


def test_parser_training_result_has_no_perplexity(tmp_path: Path) -> None:
    path = tmp_path / "tiny.conllu"
    path.write_text(format_conllu(tiny()))
    result = lemma.train("parser", treebank=path, out=tmp_path / "run", progress=False, steps=2, device="cpu", **SMALL)
    output = str(result)
    assert "perplexity" not in output and "nats/token" not in output and "UAS" in output
    assert f"validation  loss {result.validation_loss:.4f} nats/word" in output


def test_parser_calls_with_invalid_arguments_are_refused(run: Path) -> None:
    with pytest.raises(RunError, match=r"not a language model. It is a parser"):
        lemma.generate(run)
    with pytest.raises(SpecError, match="nothing to learn from is given"):
        lemma.train("parser", out="nowhere")
    with pytest.raises(SpecError, match="--treebank is not for a model of the family lstm: it learns --text"):
        lemma.train("lstm", treebank="ewt", out="nowhere")
    with pytest.raises(SpecError, match=r"--text is not for .* parser: it learns --treebank\. Treebank by name"):
        lemma.train("parser", text="shakespeare", out="nowhere")
    with pytest.raises(InputError, match="no words"):
        lemma.look("parse", run, text=" \n ")
    with pytest.raises(InputError, match="at most 400"):
        lemma.look("parse", run, text="word " * 401)
    with pytest.raises(InputError, match=r"unknown relation 'dobjj'\. Did you mean 'dobj'"):
        lemma.look("parse", run, text="I go", relation="dobjj")


def test_interrupted_parser_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "tiny.conllu"
    path.write_text(format_conllu(tiny()))
    words = {"batch": 4, "warm_up": 2, "dropout": 0.2, "device": "cpu", **SMALL, "word_dropout": 0.3}
    kwargs = {"treebank": path, "progress": False, "evaluate_every": 4}
    lemma.train("parser", out=tmp_path / "whole", steps=12, **kwargs, **words)
    halted = {**words, "checkpoint_every": 4}
    lemma.train("parser", out=tmp_path / "halved", steps=12, **kwargs, **halted)
    for step in (12,):  # the state of a run that was killed after step 8
        remove_folder(tmp_path / "halved" / "checkpoints" / f"step-{step}")
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / "halved" / name).unlink()
    lemma.resume(tmp_path / "halved", progress=False)
    full, halved = (
        lemma.load(tmp_path / name, "cpu").require(ParserModel, "a parser").state_dict() for name in ("whole", "halved")
    )
    assert all(torch.equal(full[name], halved[name]) for name in full)


def test_language_model_trees_are_compared_with_baselines(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEMMA_HOME", str(tmp_path / "home"))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(sentence.words) for sentence in tiny()) * 4)
    small = {"width": 8, "depth": 2, "heads": 2, "context": 48, "steps": 3, "batch": 2, "device": "cpu"}
    lemma.train("decoder", text=text, out=tmp_path / "run", progress=False, tokenizer="characters", **small)
    score = lemma.evaluate(tmp_path / "run", treebank=run.parent / "tiny.conllu", progress=False, layer=1, head=0)
    output = score.to_dict()
    assert output["las"] is None and 0 <= output["uuas"] <= 100
    assert {"untrained attention", "shuffled attention", "on the word before"} <= set(output["baselines"])
    absent = tmp_path / "absent.conllu"
    with pytest.raises(InputError, match=r"no layer 9: the model has 2 layers \(0 to 1\) of 2 heads \(0 to 1\)"):
        lemma.evaluate(tmp_path / "run", treebank=absent, progress=False, layer=9)
    with pytest.raises(InputError, match="no layer 9: the model has 2 layers"):
        lemma.look("parse", tmp_path / "run", text="I prefer it", layer=9)
    dobj = next(f for f in output["heads"] if (f["relation"], f["direction"]) == ("dobj", "to the head word"))
    assert dobj["offset"] == -1 and dobj["untrained"] is not None and dobj["shuffled"] is not None
    tree = lemma.look("parse", tmp_path / "run", text="I prefer it", layer=0, head=1)
    assert tree.to_dict()["sentences"][0]["heads"].count(0) == 1 and "no labels" in str(tree)


def remove_folder(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
