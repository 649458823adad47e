"""Wrong answers as people give them, and whether the explanation is the mistake that was made.

A model is written down part by part, as in a textbook; a slip is an edit of that text. Nothing here uses the
explainer's own elements. Half of the answers have two slips.
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
from lemma.checking.compare_formula import read_question
from lemma.checking.explain import explain
from lemma.checking.read_formula import read_formula
from lemma.counting.account import Account
from lemma.counting.count import DEFAULT_CONVENTIONS
from lemma.counting.subject import resolve_subject

Parts = dict[str, tuple[str, str]]
"""The parts of a model by name: how often, and what each is."""


@dataclass(frozen=True)
class Slip:
    """What a person did wrong: parts left out, parts written otherwise, parts added, or a text put for another in all.

    `says` is a pattern that an exact diagnosis contains.
    """

    says: str
    without: str = ""
    instead: tuple[tuple[str, str], ...] = ()
    more: str = ""
    times: tuple[str, str] = ("", "")
    """In how often all (or `among`) parts are there: this for that."""
    each: tuple[str, str] = ("", "")
    """In what each part (or those `among`) is: this for that."""
    among: str = ""

    def made(self, parts: Parts) -> Parts:
        made = {name: part for name, part in parts.items() if name not in self.without.split()}
        for name, text in self.instead:
            made[name] = (made[name][0], text)
        for name in self.among.split() or list(made):
            often, what = made[name]
            made[name] = (_put(*self.times, often), _put(*self.each, what))
        return made | ({f"more {self.more}": ("1", self.more)} if self.more else {})

    def touches(self, parts: Parts) -> set[str]:
        made = self.made(parts)
        return {name for name in parts if made.get(name) != parts[name]} | (made.keys() - parts.keys())


def _put(this: str, that: str, text: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(this)}(?!\w)", that, text) if this else text


def slip(says: str, without: str = "", **more) -> Slip:
    more["instead"] = tuple(more.get("instead", {}).items())
    return Slip(says, without, **more)


FEED_FORWARD: Parts = {
    "embedding": ("1", "V d"),
    "hidden": ("1", "(N-1) d d_h"),
    "bias": ("1", "d_h"),
    "output": ("1", "V d_h"),
}
FEED_FORWARD_SLIPS = [
    slip("a bias of d_h in 'hidden' .*leaves out", "bias"),
    slip("N where the model has N-1", instead={"hidden": "N d d_h"}),
    slip("N-2 where the model has N-1", instead={"hidden": "(N-2) d d_h"}),
    slip("'output'", "output"),
    slip("'embedding'", "embedding"),
    slip("a bias of V in 'output' that the model does not have", more="V"),
    slip("leaves the factor N-1 out of 'hidden.weight'", instead={"hidden": "d d_h"}),
    slip("d where the model has d_h .*'output.weight'", instead={"output": "V d"}),
    slip("multiplies 'hidden.bias' by N-1", instead={"bias": "(N-1) d_h"}),
    slip("V[+]1 where the model has V", each=("V", "(V+1)")),
    slip("V[+]1 where the model has V in 'embedding.weight'", instead={"embedding": "(V+1) d"}),
    slip("d where the model has d_h .*'hidden.bias'", instead={"bias": "d"}),
    slip("leaves the factor d_h out of 'output.weight'", instead={"output": "V"}),
    slip("counts 'embedding.weight'|counts the weight of V[*]d in 'embedding' twice", instead={"embedding": "2 V d"}),
    slip("d_h where the model has d", instead={"hidden": "(N-1) d_h d_h"}),
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
ATTENTIVE_SLIPS = [
    slip("a bias of d_h in 'hidden' .*leaves out", "bias"),
    slip("'head.query.weight' or 'head.key.weight'", "query"),
    slip("'head.value'", "value"),
    slip("'hidden'", "hidden bias"),
    slip("d_k where the model has d_v .*'head.value", instead={"value": "d d_k"}),
    slip("multiplies 'hidden.weight' by N-1", instead={"hidden": "(N-1) d_v d_h"}),
    slip("d where the model has d_v .*'hidden.weight'", instead={"hidden": "d d_h"}),
    slip("a bias of V in 'output' that the model does not have", more="V"),
    slip("'head'", "query key value"),
    slip("d_v where the model has d_k", instead={"query": "d d_v", "key": "d d_v"}),
    slip("'head.query.weight' or 'head.key.weight'", instead={"query": "d d_v"}),
    slip("T|N.* is foreign|foreign.* N", more="N d"),
    slip("'output'", "output"),
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


def recurrent_slips(gates: int) -> list[Slip]:
    found = [
        slip(r"a bias of V in 'output'.* that your formula leaves out|has 'output' \(V", "output_bias"),
        slip("'layers.bias_ih_l[*]'.* leaves out|leaves out.*'layers.bias_ih_l[*]'", "bias"),
        slip("'layers.weight_hh_l[*]'", "recurrent"),
        slip(
            "d where the model has D (on one side of|in) 'layers.weight_ih_l1…'",
            instead={"upper": f"({gates}) d D"},
        ),
        slip("'embedding'", "embedding"),
        slip("counts the bias 'layers.bias_ih_l[*]' .* twice", instead={"bias": f"2 ({gates}) D"}),
        slip("L where the model has L-1", times=("(L-1)", "L"), among="upper"),
        slip("d where the model has D .*'output", instead={"output": "V d"}),
        slip("'layers' for one layer only", times=("L", "1")),
        slip("'output", "output"),
        slip("'layers.weight_ih_l1…'|every 'weight_ih'", "upper"),
        slip("'layers.weight_ih_l0'|every 'weight_ih'", "first"),
        slip("D where the model has d .*'layers.weight_ih_l0'", instead={"first": f"({gates}) D D"}),
        slip("leaves the factor D out of 'layers.weight_hh_l[*]'", instead={"recurrent": f"({gates}) D"}),
        slip(r"all biases|bias_ih_l[*]' .* and 'output' \(V", "bias output_bias"),
    ]
    if gates > 1:
        found += [
            slip(f"yours has {gates - 1}", each=(f"({gates})", f"{gates - 1}")),
            slip("'layers.bias_ih_l[*]'.*yours has 1", instead={"bias": "D"}),
            slip(f"yours has {gates + 1}", each=(f"({gates})", f"{gates + 1}")),
        ]
    return found


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
BLOCK_SLIPS = [
    slip("'(encoder[.])?norm' .*leaves out", "norm"),
    slip("tied", more="V d"),
    slip("all norms", "norm norm1 norm2"),
    slip("norms of the layers", "norm1 norm2"),
    slip("attention_norm' or '.*feed_forward_norm'|counts 1", "norm2"),
    slip("biases of '(encoder[.])?layers.*attention'", "qkv_bias out_bias"),
    slip("biases of '(encoder[.])?layers.*feed_forward'", "wide_bias narrow_bias"),
    slip("all biases but those of norms", "qkv_bias out_bias wide_bias narrow_bias"),
    slip("'(encoder[.])?layers.[*].attention.output' .*leaves out", "out out_bias"),
    slip("'(encoder[.])?layers.[*].feed_forward' .*leaves out", "wide wide_bias narrow narrow_bias"),
    slip("attention.query_key_value.* by h", instead={"qkv": "3 h d d"}),
    slip("L[+]1 where the model has L", times=("L", "(L+1)")),
    slip("L-1 where the model has L", times=("L", "(L-1)")),
    slip("for one layer only", times=("L", "1")),
    slip("query, key and value.; yours has 1", instead={"qkv": "d d", "qkv_bias": "d"}),
    slip("d where the model has (d_ff|4[*]d)", instead={"wide": "d d", "narrow": "d d", "wide_bias": "d"}),
    slip("2[*]d where the model has (d_ff|4[*]d)", instead={"wide": "2 d d", "narrow": "2 d d", "wide_bias": "2 d"}),
    slip("'(encoder[.])?layers.[*].feed_forward.narrow'", "narrow narrow_bias"),
    slip("'(encoder[.])?layers.[*].attention.query_key_value'", "qkv qkv_bias"),
]
DECODER_SLIPS = [
    *BLOCK_SLIPS,
    slip("'positions'", "positions"),
    slip("T[+]1 where the model has T", instead={"positions": "(T+1) d"}),
    slip("'embedding'|weight of V[*]d in 'embedding'", "embedding"),
]
ENCODER_SLIPS = [*BLOCK_SLIPS, slip("T.* foreign|foreign.* T", more="T d"), slip("foreign", more="h d")]
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
C5_SLIPS = [
    slip("'decoder.layers.[*].source_attention'|every 'source_attention'", "cross cross_bias cross_out cross_out_bias"),
    slip("source_norm|one norm less", "cross_norm"),
    slip("all norms", "e_norm1 e_norm2 d_norm1 d_norm2 cross_norm"),
    slip(
        "all biases but those of norms",
        "e_qkv_bias e_out_bias e_wide_bias e_narrow_bias d_qkv_bias d_out_bias "
        "d_wide_bias d_narrow_bias cross_bias cross_out_bias",
    ),
    slip("d where the model has d_h", each=("d_h", "d")),
    slip("L_enc where the model has L_dec", times=("L_dec", "L_enc")),
    slip("L_dec[+]1 where the model has L_dec", times=("L_dec", "(L_dec+1)")),
    slip("every 'feed_forward'", "e_wide e_wide_bias e_narrow e_narrow_bias d_wide d_wide_bias d_narrow d_narrow_bias"),
    slip("'decoder.layers.[*].feed_forward'", "d_wide d_wide_bias d_narrow d_narrow_bias"),
    slip("4[*]d where the model has d_ff", each=("d_ff", "4 d")),
    slip("tied", more="V d"),
    slip("'encoder'", "e_qkv e_qkv_bias e_out e_out_bias e_wide e_wide_bias e_narrow e_narrow_bias e_norm1 e_norm2"),
    slip("T.* foreign|foreign.* T", more="T d"),
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
LLAMA_SLIPS = [
    slip("h where the model has g", instead={"key": "d h k", "value": "d h k"}),
    slip("one of these.*'layers.[*].self_attn.k_proj.*'layers.[*].self_attn.v_proj", "value"),
    slip("gate_proj.*up_proj.*down_proj", "gate"),
    slip("mlp", "gate up down"),
    slip("embed_tokens.*lm_head", "output"),
    slip("all norms", "norm norm1 norm2"),
    slip("'norm' |weight of d in 'norm'", "norm"),
    slip("counts all norms .*twice", instead={"norm": "2 d", "norm1": "2 d", "norm2": "2 d"}),
    slip("q_proj.*o_proj", "out"),
    slip("g where the model has h", instead={"query": "d g k", "out": "g k d"}),
    slip("d where the model has m", each=("m", "d")),
    slip("L[+]1 where the model has L", times=("L", "(L+1)")),
    slip("bias of V in 'lm_head' that the model does not have", more="V"),
    slip("leaves the factor d out of .*'lm_head.weight'", instead={"output": "V"}),
    slip("leaves the factor k out of 'layers.[*].self_attn'|leaves the factor k", each=("k", "1")),
    slip("one layer only", times=("L", "1")),
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
GROUPED_SLIPS = [
    slip("h where the model has h_kv", instead={"key_value": "2 d d_h"}),
    slip(
        "2 equal blocks in 'layers.[*].feed_forward.gate_widen.weight'.*; yours has 1|narrow",
        instead={"gate_up": "d d_ff"},
    ),
    slip("embedding.*output", "output"),
    slip("all norms", "norm norm1 norm2"),
    slip("attention.output", "out"),
    slip("'layers.[*].feed_forward'", "gate_up down"),
    slip("d where the model has d_ff", each=("d_ff", "d")),
    slip("4[*]d where the model has d_ff", each=("d_ff", "4 d")),
    slip("T is foreign", more="T d"),
    slip("L-1 where the model has L", times=("L", "(L-1)")),
]
MODELS = {
    "feed-forward": (FEED_FORWARD, FEED_FORWARD_SLIPS),
    "attentive": (ATTENTIVE, ATTENTIVE_SLIPS),
    "rnn": (recurrent(1), recurrent_slips(1)),
    "lstm": (recurrent(4), recurrent_slips(4)),
    "gru": (recurrent(3), recurrent_slips(3)),
    "encoder": (ENCODER, ENCODER_SLIPS),
    "decoder": (DECODER, DECODER_SLIPS),
    "transformer-c5": (C5, C5_SLIPS),
    "llama": (LLAMA, LLAMA_SLIPS),
    "grouped": (GROUPED, GROUPED_SLIPS),
}
LIKE_LLAMA = {"gated": True, "norm": "rms", "positions": "rotary", "bias": False, "tied": False, "activation": "silu"}
SIZES = {
    **{name: {"L": 3} for name in ("rnn", "lstm", "gru")},
    "grouped": {**LIKE_LLAMA, "heads": 4, "key_value_heads": 2, "feed_forward": 352},
}


@cache
def counted(model: str) -> Account:
    """A model's formulas, once for all answers."""
    subject = resolve_subject({"llama": Llama, "grouped": "decoder"}.get(model, model), SIZES.get(model))
    return account_for(subject, ("parameters",), DEFAULT_CONVENTIONS)


def spelled(parts: Parts) -> str:
    return " + ".join(f"({often}) ({each})" for often, each in parts.values())


SYMBOLS = ["V", "d", "d_h", "D", "N", "L", "h", "T", "d_k", "d_v", "d_ff", "L_enc", "L_dec", "g", "k", "m", "h_kv"]


def wrong_answers() -> Iterator[tuple[str, str, tuple[Slip, ...]]]:
    """All answers with one slip, and about as many with two that do not touch the same part.

    Two slips whose sum is what one slip gives are one slip for all that anyone can tell.
    """
    source = random.Random(0)
    for model, (parts, slips) in MODELS.items():
        alone = {read_formula(spelled(one.made(parts)), SYMBOLS).numerator for one in slips}
        right = read_formula(spelled(parts), SYMBOLS).numerator
        for one in slips:
            yield model, spelled(one.made(parts)), (one,)
        pairs = []
        for one, other in combinations(slips, 2):
            if one.touches(parts) & other.touches(parts):
                continue
            both = spelled(other.made(one.made(parts)))
            if read_formula(both, SYMBOLS).numerator not in {*alone, right}:
                pairs.append((model, both, (one, other)))
        source.shuffle(pairs)
        yield from pairs[: len(slips)]


ANSWERS = list(wrong_answers())
HEDGED = re.compile(r"\b[Ee]ither\b|one of these|No simple explanation|[Mm]ost likely")


def judged(model: str, formula: str, slips: tuple[Slip, ...]) -> tuple[bool, bool, str]:
    """Whether every slip is named, whether a diagnosis without it is given as certain, and the diagnosis."""
    question = read_question(counted(model), "parameters", formula, {})
    assert not question.is_equal
    said = explain(question)[0] or "No simple explanation."
    exact = all(re.search(one.says, said) for one in slips)
    return exact, not exact and not HEDGED.search(said), said


def test_the_textbook_formulas_are_right() -> None:
    for model, (parts, _) in MODELS.items():
        assert read_question(counted(model), "parameters", spelled(parts), {}).is_equal, model


def test_no_part_is_explained_twice() -> None:
    """Two explanations are never about one part: what is left out by itself is not left out with its module too."""
    said = check_formula("decoder", "parameters", "d(V+T+2) + L(4d^2 + 4d + 4d^2 + 3d + 4d)").diagnosis[0]
    assert said == "Your formula has 2*d where the model has d_ff = 4*d."


def test_most_mistakes_are_named_exactly_and_none_is_named_wrongly_with_certainty() -> None:
    results = [(judged(*answer), answer) for answer in ANSWERS]
    exact = sum(result[0] for result, _ in results)
    certain = [(answer, result[2]) for result, answer in results if result[1]]
    two = [result[0] for result, answer in results if len(answer[2]) == 2]
    print(
        f"{exact} of {len(results)} exact ({sum(two)} of {len(two)} with two slips), {len(certain)} certain and wrong"
    )
    assert len(ANSWERS) >= 200 and len(two) >= len(ANSWERS) / 2
    assert not certain, certain[:3]
    assert exact / len(results) >= 0.95 and sum(two) / len(two) >= 0.92
