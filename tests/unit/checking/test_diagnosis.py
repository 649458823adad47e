"""Diagnoses of typical wrong answers, compared with the mistakes that were made.

A model is written part by part, as in a textbook; a mistake is an edit of that text. Nothing here uses the mistakes
that the diagnosis knows. Half of the answers have two mistakes.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from torch import nn

from lemma.checking.accounts import account_for
from lemma.checking.check_formula import check_formula
from lemma.checking.compare_formula import compare_answer
from lemma.checking.explain import explain
from lemma.checking.read_formula import read_formula
from lemma.counting.account import Account
from lemma.counting.count import DEFAULT_CONVENTIONS
from lemma.counting.subject import resolve_subject

Parts = dict[str, tuple[str, str]]
"""Parts of a model by name: the number of repetitions and the formula of each."""


@dataclass(frozen=True)
class MadeMistake:
    """A mistake in a textbook formula.

    Attributes:
        pattern: regular expression that an exact diagnosis contains.
        omitted: parts left out.
        replaced: parts with another formula.
        added: a term that the model does not have.
        times: a word and its replacement in the number of repetitions.
        each: a word and its replacement in the formulas of parts.
        among: the parts in which `times` and `each` are replaced; all by default.
    """

    pattern: str
    omitted: str = ""
    replaced: tuple[tuple[str, str], ...] = ()
    added: str = ""
    times: tuple[str, str] = ("", "")
    each: tuple[str, str] = ("", "")
    among: str = ""

    def apply(self, parts: Parts) -> Parts:
        mistaken = {name: part for name, part in parts.items() if name not in self.omitted.split()}
        for name, text in self.replaced:
            mistaken[name] = (mistaken[name][0], text)
        for name in self.among.split() or list(mistaken):
            times, each = mistaken[name]
            mistaken[name] = (_replace_word(*self.times, times), _replace_word(*self.each, each))
        return mistaken | ({f"more {self.added}": ("1", self.added)} if self.added else {})

    def changed_parts(self, parts: Parts) -> set[str]:
        mistaken = self.apply(parts)
        return {name for name in parts if mistaken.get(name) != parts[name]} | (mistaken.keys() - parts.keys())


def _replace_word(old: str, new: str, text: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, text) if old else text


def mistake(pattern: str, omitted: str = "", **changes) -> MadeMistake:
    changes["replaced"] = tuple(changes.get("replaced", {}).items())
    return MadeMistake(pattern, omitted, **changes)


FEED_FORWARD: Parts = {
    "embedding": ("1", "V d"),
    "hidden": ("1", "(N-1) d d_h"),
    "bias": ("1", "d_h"),
    "output": ("1", "V d_h"),
}
FEED_FORWARD_MISTAKES = [
    mistake("a bias of d_h in 'hidden' .*leaves out", "bias"),
    mistake("N where the model has N-1", replaced={"hidden": "N d d_h"}),
    mistake("N-2 where the model has N-1", replaced={"hidden": "(N-2) d d_h"}),
    mistake("'output'", "output"),
    mistake("'embedding'", "embedding"),
    mistake("a bias of V in 'output' that the model does not have", added="V"),
    mistake("leaves the factor N-1 out of 'hidden.weight'", replaced={"hidden": "d d_h"}),
    mistake("d where the model has d_h .*'output.weight'", replaced={"output": "V d"}),
    mistake("multiplies 'hidden.bias' by N-1", replaced={"bias": "(N-1) d_h"}),
    mistake("V[+]1 where the model has V", each=("V", "(V+1)")),
    mistake("V[+]1 where the model has V in 'embedding.weight'", replaced={"embedding": "(V+1) d"}),
    mistake("d where the model has d_h .*'hidden.bias'", replaced={"bias": "d"}),
    mistake("leaves the factor d_h out of 'output.weight'", replaced={"output": "V"}),
    mistake(
        "counts 'embedding.weight'|counts the weight of V[*]d in 'embedding' twice", replaced={"embedding": "2 V d"}
    ),
    mistake("d_h where the model has d", replaced={"hidden": "(N-1) d_h d_h"}),
]
ATTENTIVE: Parts = {
    "embedding": ("1", "V d"),
    "query": ("1", "d d_k"),
    "key": ("1", "d d_k"),
    "value": ("1", "d d_v"),
    "hidden": ("1", "d_v d_h"),
    "bias": ("1", "d_h"),
    "output": ("1", "V d_h"),
}
ATTENTIVE_MISTAKES = [
    mistake("a bias of d_h in 'hidden' .*leaves out", "bias"),
    mistake("'head.query.weight' or 'head.key.weight'", "query"),
    mistake("'head.value'", "value"),
    mistake("'hidden'", "hidden bias"),
    mistake("d_k where the model has d_v .*'head.value", replaced={"value": "d d_k"}),
    mistake("multiplies 'hidden.weight' by N-1", replaced={"hidden": "(N-1) d_v d_h"}),
    mistake("d where the model has d_v .*'hidden.weight'", replaced={"hidden": "d d_h"}),
    mistake("a bias of V in 'output' that the model does not have", added="V"),
    mistake("'head'", "query key value"),
    mistake("d_v where the model has d_k", replaced={"query": "d d_v", "key": "d d_v"}),
    mistake("'head.query.weight' or 'head.key.weight'", replaced={"query": "d d_v"}),
    mistake("T|N.* is foreign|foreign.* N", added="N d"),
    mistake("'output'", "output"),
]


def recurrent(gates: int) -> Parts:
    return {
        "embedding": ("1", "V d"),
        "first": ("1", f"({gates}) d D"),
        "upper": ("(L-1)", f"({gates}) D D"),
        "recurrent": ("L", f"({gates}) D D"),
        "bias": ("L", f"({gates}) D"),
        "output": ("1", "V D"),
        "output_bias": ("1", "V"),
    }


def recurrent_mistakes(gates: int) -> list[MadeMistake]:
    mistakes = [
        mistake(r"a bias of V in 'output'.* that your formula leaves out|has 'output' \(V", "output_bias"),
        mistake("'layers.bias_ih_l[*]'.* leaves out|leaves out.*'layers.bias_ih_l[*]'", "bias"),
        mistake("'layers.weight_hh_l[*]'", "recurrent"),
        mistake(
            "d where the model has D (on one side of|in) 'layers.weight_ih_l1…'",
            replaced={"upper": f"({gates}) d D"},
        ),
        mistake("'embedding'", "embedding"),
        mistake("two bias vectors of .* b_ih and b_hh", replaced={"bias": f"2 ({gates}) D"}),
        mistake("L where the model has L-1", times=("(L-1)", "L"), among="upper"),
        mistake("d where the model has D .*'output", replaced={"output": "V d"}),
        mistake("'layers' for one layer only", times=("L", "1")),
        mistake("'output", "output"),
        mistake("'layers.weight_ih_l1…'|every 'weight_ih'", "upper"),
        mistake("'layers.weight_ih_l0'|every 'weight_ih'", "first"),
        mistake("D where the model has d .*'layers.weight_ih_l0'", replaced={"first": f"({gates}) D D"}),
        mistake("leaves the factor D out of 'layers.weight_hh_l[*]'", replaced={"recurrent": f"({gates}) D"}),
        mistake(r"all biases|bias_ih_l[*]' .* and 'output' \(V", "bias output_bias"),
    ]
    if gates > 1:
        mistakes += [
            mistake(f"yours has {gates - 1}", each=(f"({gates})", f"{gates - 1}")),
            mistake("'layers.bias_ih_l[*]'.*yours has 1", replaced={"bias": "D"}),
            mistake(f"yours has {gates + 1}", each=(f"({gates})", f"{gates + 1}")),
        ]
    return mistakes


def block(at: str, often: str, d_h: str, d_ff: str) -> Parts:
    return {
        f"{at}qkv": (often, f"3 d {d_h}"),
        f"{at}qkv_bias": (often, f"3 {d_h}"),
        f"{at}out": (often, f"{d_h} d"),
        f"{at}out_bias": (often, "d"),
        f"{at}wide": (often, f"d {d_ff}"),
        f"{at}wide_bias": (often, d_ff),
        f"{at}narrow": (often, f"{d_ff} d"),
        f"{at}narrow_bias": (often, "d"),
        f"{at}norm1": (often, "2 d"),
        f"{at}norm2": (often, "2 d"),
    }


ENCODER: Parts = {"embedding": ("1", "V d"), "norm": ("1", "2 d"), **block("", "L", "d", "4 d")}
DECODER: Parts = {"positions": ("1", "T d"), **ENCODER}
BLOCK_MISTAKES = [
    mistake("'(encoder[.])?norm' .*leaves out", "norm"),
    mistake("tied", added="V d"),
    mistake("all norms", "norm norm1 norm2"),
    mistake("norms of the layers", "norm1 norm2"),
    mistake("attention_norm' or '.*feed_forward_norm'|counts 1", "norm2"),
    mistake("biases of '(encoder[.])?layers.*attention'", "qkv_bias out_bias"),
    mistake("biases of '(encoder[.])?layers.*feed_forward'", "wide_bias narrow_bias"),
    mistake("all biases but those of norms", "qkv_bias out_bias wide_bias narrow_bias"),
    mistake("'(encoder[.])?layers.[*].attention.output' .*leaves out", "out out_bias"),
    mistake("'(encoder[.])?layers.[*].feed_forward' .*leaves out", "wide wide_bias narrow narrow_bias"),
    mistake("attention.query_key_value.* by h", replaced={"qkv": "3 h d d"}),
    mistake("L[+]1 where the model has L", times=("L", "(L+1)")),
    mistake("L-1 where the model has L", times=("L", "(L-1)")),
    mistake("for one layer only", times=("L", "1")),
    mistake("query, key and value.; yours has 1", replaced={"qkv": "d d", "qkv_bias": "d"}),
    mistake("d where the model has (d_ff|4[*]d)", replaced={"wide": "d d", "narrow": "d d", "wide_bias": "d"}),
    mistake(
        "2[*]d where the model has (d_ff|4[*]d)", replaced={"wide": "2 d d", "narrow": "2 d d", "wide_bias": "2 d"}
    ),
    mistake("'(encoder[.])?layers.[*].feed_forward.narrow'", "narrow narrow_bias"),
    mistake("'(encoder[.])?layers.[*].attention.query_key_value'", "qkv qkv_bias"),
]
DECODER_MISTAKES = [
    *BLOCK_MISTAKES,
    mistake("'positions'", "positions"),
    mistake("T[+]1 where the model has T", replaced={"positions": "(T+1) d"}),
    mistake("'embedding'|weight of V[*]d in 'embedding'", "embedding"),
]
ENCODER_MISTAKES = [*BLOCK_MISTAKES, mistake("T.* foreign|foreign.* T", added="T d"), mistake("foreign", added="h d")]
C5: Parts = {
    "embedding": ("1", "V d"),
    **block("e_", "L_enc", "d_h", "d_ff"),
    **block("d_", "L_dec", "d_h", "d_ff"),
    "cross": ("L_dec", "3 d d_h"),
    "cross_bias": ("L_dec", "3 d_h"),
    "cross_out": ("L_dec", "d_h d"),
    "cross_out_bias": ("L_dec", "d"),
    "cross_norm": ("L_dec", "2 d"),
}
C5_MISTAKES = [
    mistake(
        "'decoder.layers.[*].source_attention'|every 'source_attention'", "cross cross_bias cross_out cross_out_bias"
    ),
    mistake("source_norm|one norm less", "cross_norm"),
    mistake("all norms", "e_norm1 e_norm2 d_norm1 d_norm2 cross_norm"),
    mistake(
        "all biases but those of norms",
        "e_qkv_bias e_out_bias e_wide_bias e_narrow_bias d_qkv_bias d_out_bias "
        "d_wide_bias d_narrow_bias cross_bias cross_out_bias",
    ),
    mistake("d where the model has d_h", each=("d_h", "d")),
    mistake("L_enc where the model has L_dec", times=("L_dec", "L_enc")),
    mistake("L_dec[+]1 where the model has L_dec", times=("L_dec", "(L_dec+1)")),
    mistake(
        "every 'feed_forward'", "e_wide e_wide_bias e_narrow e_narrow_bias d_wide d_wide_bias d_narrow d_narrow_bias"
    ),
    mistake("'decoder.layers.[*].feed_forward'", "d_wide d_wide_bias d_narrow d_narrow_bias"),
    mistake("4[*]d where the model has d_ff", each=("d_ff", "4 d")),
    mistake("tied", added="V d"),
    mistake("'encoder'", "e_qkv e_qkv_bias e_out e_out_bias e_wide e_wide_bias e_narrow e_narrow_bias e_norm1 e_norm2"),
    mistake("T.* foreign|foreign.* T", added="T d"),
]


class Llama(nn.Module):
    """The tensors of an imported decoder: grouped heads, a gated feed-forward layer, RMS norms, an untied output."""

    def __init__(self, V: int = 96, d: int = 32, L: int = 3, h: int = 6, g: int = 2, k: int = 8, m: int = 40) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.embed_tokens, self.norm, self.lm_head = nn.Embedding(V, d), nn.RMSNorm(d), linear(d, V)
        self.layers = nn.ModuleList()
        for _ in range(L):
            attention = {"q_proj": linear(d, h * k), "k_proj": linear(d, g * k), "v_proj": linear(d, g * k)}
            attention["o_proj"] = linear(h * k, d)
            mlp = {"gate_proj": linear(d, m), "up_proj": linear(d, m), "down_proj": linear(m, d)}
            norms = {"input_layernorm": nn.RMSNorm(d), "post_attention_layernorm": nn.RMSNorm(d)}
            layer = {"self_attn": nn.ModuleDict(attention), "mlp": nn.ModuleDict(mlp), **norms}
            self.layers.append(nn.ModuleDict(layer))


LLAMA: Parts = {
    "embedding": ("1", "V d"),
    "query": ("L", "d h k"),
    "key": ("L", "d g k"),
    "value": ("L", "d g k"),
    "out": ("L", "h k d"),
    "gate": ("L", "d m"),
    "up": ("L", "d m"),
    "down": ("L", "m d"),
    "norm1": ("L", "d"),
    "norm2": ("L", "d"),
    "norm": ("1", "d"),
    "output": ("1", "d V"),
}
LLAMA_MISTAKES = [
    mistake("h where the model has g", replaced={"key": "d h k", "value": "d h k"}),
    mistake("one of these.*'layers.[*].self_attn.k_proj.*'layers.[*].self_attn.v_proj", "value"),
    mistake("gate_proj.*up_proj.*down_proj", "gate"),
    mistake("mlp", "gate up down"),
    mistake("embed_tokens.*lm_head", "output"),
    mistake("all norms", "norm norm1 norm2"),
    mistake("'norm' |weight of d in 'norm'", "norm"),
    mistake("counts all norms .*twice", replaced={"norm": "2 d", "norm1": "2 d", "norm2": "2 d"}),
    mistake("q_proj.*o_proj", "out"),
    mistake("g where the model has h", replaced={"query": "d g k", "out": "g k d"}),
    mistake("d where the model has m", each=("m", "d")),
    mistake("L[+]1 where the model has L", times=("L", "(L+1)")),
    mistake("bias of V in 'lm_head' that the model does not have", added="V"),
    mistake("leaves the factor d out of .*'lm_head.weight'", replaced={"output": "V"}),
    mistake("leaves the factor k out of 'layers.[*].self_attn'|leaves the factor k", each=("k", "1")),
    mistake("one layer only", times=("L", "1")),
]
GROUPED: Parts = {
    "embedding": ("1", "V d"),
    "query": ("L", "d d_h"),
    "key_value": ("L", "2 d d_h h_kv/h"),
    "out": ("L", "d_h d"),
    "gate_up": ("L", "2 d d_ff"),
    "down": ("L", "d_ff d"),
    "norm1": ("L", "d"),
    "norm2": ("L", "d"),
    "norm": ("1", "d"),
    "output": ("1", "V d"),
}
GROUPED_MISTAKES = [
    mistake("h where the model has h_kv", replaced={"key_value": "2 d d_h"}),
    mistake(
        "2 equal blocks in 'layers.[*].feed_forward.gate_widen.weight'.*; yours has 1|narrow",
        replaced={"gate_up": "d d_ff"},
    ),
    mistake("embedding.*output", "output"),
    mistake("all norms", "norm norm1 norm2"),
    mistake("attention.output", "out"),
    mistake("'layers.[*].feed_forward'", "gate_up down"),
    mistake("d where the model has d_ff", each=("d_ff", "d")),
    mistake("4[*]d where the model has d_ff", each=("d_ff", "4 d")),
    mistake("T is foreign", added="T d"),
    mistake("L-1 where the model has L", times=("L", "(L-1)")),
]
MODELS = {
    "feed-forward": (FEED_FORWARD, FEED_FORWARD_MISTAKES),
    "attentive": (ATTENTIVE, ATTENTIVE_MISTAKES),
    "rnn": (recurrent(1), recurrent_mistakes(1)),
    "lstm": (recurrent(4), recurrent_mistakes(4)),
    "gru": (recurrent(3), recurrent_mistakes(3)),
    "encoder": (ENCODER, ENCODER_MISTAKES),
    "decoder": (DECODER, DECODER_MISTAKES),
    "transformer-c5": (C5, C5_MISTAKES),
    "llama": (LLAMA, LLAMA_MISTAKES),
    "grouped": (GROUPED, GROUPED_MISTAKES),
}
LIKE_LLAMA = {"gated": True, "norm": "rms", "positions": "rotary", "bias": False, "tied": False, "activation": "silu"}
SIZES = {
    **{name: {"L": 3} for name in ("rnn", "lstm", "gru")},
    "grouped": {**LIKE_LLAMA, "heads": 4, "key_value_heads": 2, "feed_forward": 352},
}


@cache
def cached_account(model: str) -> Account:
    """Return the account of a model, cached for all answers."""
    subject = resolve_subject({"llama": Llama, "grouped": "decoder"}.get(model, model), SIZES.get(model))
    return account_for(subject, ("parameters",), DEFAULT_CONVENTIONS)


def write_parts(parts: Parts) -> str:
    return " + ".join(f"({often}) ({each})" for often, each in parts.values())


SYMBOLS = ["V", "d", "d_h", "D", "N", "L", "h", "T", "d_k", "d_v", "d_ff", "L_enc", "L_dec", "g", "k", "m", "h_kv"]


def wrong_answers() -> Iterator[tuple[str, str, tuple[MadeMistake, ...]]]:
    """Yield all answers with one mistake, and about as many with two that change different parts.

    Two mistakes that add up to a single one cannot be distinguished from it, and are left out.
    """
    source = random.Random(0)
    for model, (parts, mistakes) in MODELS.items():
        single = {read_formula(write_parts(mistake.apply(parts)), SYMBOLS).numerator for mistake in mistakes}
        right = read_formula(write_parts(parts), SYMBOLS).numerator
        for mistake in mistakes:
            yield model, write_parts(mistake.apply(parts)), (mistake,)
        pairs = []
        for first, second in combinations(mistakes, 2):
            if first.changed_parts(parts) & second.changed_parts(parts):
                continue
            formula = write_parts(second.apply(first.apply(parts)))
            if read_formula(formula, SYMBOLS).numerator not in {*single, right}:
                pairs.append((model, formula, (first, second)))
        source.shuffle(pairs)
        yield from pairs[: len(mistakes)]


UNCERTAIN = re.compile(r"\b[Ee]ither\b|one of these|No simple explanation|[Mm]ost likely")


def diagnose(model: str, formula: str, mistakes: tuple[MadeMistake, ...]) -> tuple[bool, bool, str]:
    """Return whether every mistake is named, whether a wrong diagnosis is given as certain, and the diagnosis."""
    question = compare_answer(cached_account(model), "parameters", formula, {})
    assert not question.is_equal
    diagnosis = explain(question)[0] or "No simple explanation."
    is_exact = all(re.search(mistake.pattern, diagnosis) for mistake in mistakes)
    return is_exact, not is_exact and not UNCERTAIN.search(diagnosis), diagnosis


def test_textbook_formulas_are_right() -> None:
    for model, (parts, _) in MODELS.items():
        assert compare_answer(cached_account(model), "parameters", write_parts(parts), {}).is_equal, model


def test_no_part_is_explained_twice() -> None:
    """A tensor that is reported missing is not reported again with its module."""
    [diagnosis] = check_formula("decoder", "parameters", "d(V+T+2) + L(4d^2 + 4d + 4d^2 + 3d + 4d)").diagnosis
    assert diagnosis == "Your formula has 2*d where the model has d_ff = 4*d."


def test_diagnosis_is_mostly_exact_and_never_confidently_wrong() -> None:
    answers = list(wrong_answers())
    results = [(diagnose(*answer), answer) for answer in answers]
    num_exact = sum(is_exact for (is_exact, _, _), _ in results)
    wrong = [(answer, diagnosis) for (_, is_wrong, diagnosis), answer in results if is_wrong]
    pairs = [is_exact for (is_exact, _, _), answer in results if len(answer[2]) == 2]
    counts = f"{num_exact} of {len(results)} exact ({sum(pairs)} of {len(pairs)} with two mistakes)"
    print(f"{counts}, {len(wrong)} certain and wrong")
    assert len(answers) >= 200 and len(pairs) >= len(answers) / 2
    assert not wrong, wrong[:3]
    assert num_exact / len(results) >= 0.95 and sum(pairs) / len(pairs) >= 0.92
