"""Accounts of models as checks need them: with quantities of parts, aliases of symbols, and other conventions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

from lemma.counting.account import Account, Part
from lemma.counting.count import QUANTITIES, Conventions, count
from lemma.counting.polynomial import ONE, Polynomial, sum_polynomials, symbol, work_limit
from lemma.counting.subject import BATCH, Model, Subject, body_spec, resolve_subject
from lemma.errors import InputError, describe_unknown
from lemma.spec.models import ModelSpec

PARAMETER_SUBSETS = ("trainable", "frozen")  # both are selected from the parameters
CHECKED_QUANTITIES = (*QUANTITIES, *PARAMETER_SUBSETS)
QUANTITY_WORDS = {  # other names of quantities
    **dict.fromkeys(("parameter", "params", "param", "weights", "all parameters"), "parameters"),
    **dict.fromkeys(("flop", "forward flops", "operations"), "flops"),
    **dict.fromkeys(("kv cache", "kv-cache", "key-value cache"), "cache"),
    **dict.fromkeys(("trainable parameters", "trainable params"), "trainable"),
    **dict.fromkeys(("frozen parameters", "frozen params"), "frozen"),
    **dict.fromkeys(("active parameters", "active params"), "active"),
}
COMMON_NAMES = {  # names of sizes in papers and code, valid where the model has the letter and not the name
    **dict.fromkeys(("d_model", "n_embd", "d_embed", "hidden_size"), "d"),
    **dict.fromkeys(("n_layers", "n_layer", "num_layers", "N_layers"), "L"),
    **dict.fromkeys(("n_heads", "n_head", "num_heads"), "h"),
    **dict.fromkeys(("n_vocab", "vocab_size", "d_vocab"), "V"),
    **dict.fromkeys(("n_ctx", "seq_len", "T_max", "block_size"), "T"),
    **dict.fromkeys(("d_hidden", "n_hidden", "d_hid"), "d_h"),
}
TIED_SIZES = {"D": "d"}  # where a tied output makes two sizes one, the account uses the second name


@work_limit(None)
def account_for(subject: Subject, names: Sequence[str], conventions: Conventions) -> Account:
    """Count the named quantities of a subject, such as `flops`, `trainable` or `parameters of encoder`.

    `trainable` and `frozen` select from the parameters; ` of PATH` selects the parts of one module.
    """
    requests = {name: name.partition(" of ")[::2] for name in names}
    kinds = dict.fromkeys("parameters" if kind in PARAMETER_SUBSETS else kind for kind, _ in requests.values())
    account = count(subject, tuple(kinds), conventions)
    quantities = dict(account.quantities)
    for name, (kind, path) in requests.items():
        if kind not in PARAMETER_SUBSETS and not path:
            continue
        quantity = account.quantities["parameters" if kind in PARAMETER_SUBSETS else kind]
        parts = list(quantity.groups)
        if kind in PARAMETER_SUBSETS:
            parts = [part for part in parts if ("frozen" in part.note) == (kind == "frozen")]
        selected = _select_parts(parts, path, account.symbols) if path else parts
        if path and not selected:
            paths = [part.path.split(".") for part in parts]
            choices = dict.fromkeys(".".join(path[:depth]) for path in paths for depth in range(1, len(path)))
            matches = _match_tail(path, [*choices, *(part.path for part in parts)])
            if len(matches) > 1:
                message = f"{account.model}: '{path}' can be {' or '.join(matches[:6])}. Write which one."
                raise InputError(message)
            if not matches:
                raise InputError(describe_unknown(f"{account.model}: part", path, choices))
            selected = _select_parts(parts, matches[0], account.symbols)
        quantities[name] = replace(quantity, groups=tuple(selected), recount=None)
    return replace(account, quantities=quantities)


class ModelExercise:
    """An exercise about a quantity of a model, or the ratio of two: the model is counted once for all answers."""

    def __init__(
        self, model: Model, quantity: str, settings: Mapping[str, Any] | None, conventions: Conventions
    ) -> None:
        self.subject, self.settings = resolve_subject(model, settings), settings or {}
        self.names, self.conventions = split_ratio(quantity), conventions
        self.account = account_for(self.subject, self.names, conventions)
        self.quantity = self.account.quantities[self.names[0]]  # the numerator of a ratio
        self.aliases = symbol_aliases(self.subject.spec, self.account.symbols)

    @cached_property
    def alternatives(self) -> list[tuple[tuple[str, ...], Polynomial]]:
        """Pairs (notes, formula of the operations) for all other ways of counting, see `alternative_conventions`."""
        return alternative_conventions(self.subject, self.conventions)


def split_ratio(quantity: str) -> tuple[str, ...]:
    """Split the text of a quantity at its slash; return the name of the quantity, or of numerator and denominator.

    Each name may end with ` of PATH` for a module; an unknown quantity raises an InputError.

    >>> split_ratio("trainable/frozen"), split_ratio("parameters of encoder")
    (('trainable', 'frozen'), ('parameters of encoder',))
    """
    names = tuple(_standard_name(" ".join(name.split())) for name in quantity.split("/"))
    for name in names:
        if name.partition(" of ")[0] not in CHECKED_QUANTITIES:
            raise InputError(describe_unknown("quantity", name, CHECKED_QUANTITIES))
    if len(names) > 2:
        raise InputError(f"'{quantity}': one quantity, or two with one slash between them, as in trainable/frozen.")
    return names


def _standard_name(name: str) -> str:
    """Return the name of a quantity, which may be written as in params of norm or total parameters.

    >>> _standard_name("Total params of norm"), _standard_name("FLOPs")
    ('parameters of norm', 'flops')
    """
    kind, of, path = name.partition(" of ")
    word = kind.casefold().removeprefix("number of ").removeprefix("total ").removeprefix("the ")
    return f"{QUANTITY_WORDS.get(word, word if word in CHECKED_QUANTITIES else kind)}{of}{path}"


def symbol_aliases(spec: ModelSpec | None, symbols: Mapping[str, int]) -> dict[str, str]:
    """Return a map from other names to the symbols of an account: {"width": "d", "d_model": "d", "batch": "B"}.

    The field names of the model's spec, if it has one, are such names too.
    """
    aliases = {name: letter for name, letter in COMMON_NAMES.items() if letter in symbols and name not in symbols}
    if BATCH in symbols:
        aliases["batch"] = BATCH
    # a classifier has its body's letters too
    letters = {**type(body_spec(spec)).letters(), **type(spec).letters()} if spec else {}
    for letter, field in letters.items():
        target = letter if letter in symbols else TIED_SIZES.get(letter, letter)
        if target in symbols:
            aliases |= {name: target for name in (field, letter) if name not in symbols}
    return aliases


@work_limit(None)
def alternative_conventions(subject: Subject, conventions: Conventions) -> list[tuple[tuple[str, ...], Polynomial]]:
    """Return (notes, formula of the operations) for all other ways of counting them, the fewest differences first.

    A multiply–add counts as 1 or as 2, causal attention in full or half, forward, backward or both; and people
    leave B or T out: they count for the batch, for one row of it, or for one token. Each note is a phrase such as
    "for one token (without B and T)".
    """
    multiply_add, causal = 3 - conventions.multiply_add, "full" if conventions.causal == "half" else "half"
    causal_note = f"with causal attention counted {'in full' if causal == 'full' else 'half'}"
    batch, time = symbol(BATCH), symbol("T")
    multiply_adds = {"": conventions.multiply_add, f"with a multiply–add counted as {multiply_add}": multiply_add}
    passes = {
        "": ("flops",),
        "for the backward pass alone": ("backward",),
        "for the forward and the backward pass together": ("flops", "backward"),
    }
    portions = {
        "": ONE,
        "for one row of the batch (without B)": batch,
        "for one token of each row (without T)": time,
        "for one token (without B and T)": batch * time,
    }
    alternatives: list[tuple[tuple[str, ...], Polynomial]] = []
    for add_note, attention_note in product(multiply_adds, ("", causal_note)):
        convention = replace(
            conventions,
            multiply_add=multiply_adds[add_note],
            causal=causal if attention_note else conventions.causal,
        )
        account = count(subject, ("flops", "backward"), convention)
        for pass_note, portion_note in product(passes, portions):
            portion = portions[portion_note]
            total = sum_polynomials(account.quantities[name].polynomial for name in passes[pass_note])
            notes = tuple(filter(None, (add_note, attention_note, pass_note, portion_note)))
            if notes and ("T" in total.symbols or "T" not in portion.symbols):
                alternatives.append((notes, total / portion))
    return sorted(alternatives, key=lambda entry: len(entry[0]))


def _match_tail(name: str, paths: Sequence[str]) -> list[str]:
    """Return the paths that end with a name, as the table of `lemma count` prints it; stars may be left out.

    >>> _match_tail("feed_forward", ["layers.*.feed_forward", "layers.*.feed_forward.widen"])
    ['layers.*.feed_forward']
    >>> _match_tail("layers.feed_forward", ["layers.*.feed_forward", "norm"])
    ['layers.*.feed_forward']
    """
    wanted = [step for step in name.split(".") if step != "*"]
    tails = {path: [step for step in path.split(".") if step != "*"][-len(wanted) :] for path in paths}
    return [path for path, tail in tails.items() if tail == wanted and not path.endswith(".*")]


def _select_parts(parts: Sequence[Part], prefix: str, sizes: Mapping[str, int]) -> list[Part]:
    """Return the parts of a formula that belong to the module at the path `prefix`, such as `encoder` or `layers.0`.

    A part that is counted for all members of a list is returned for a single one, as in `layers.0`, with 1 as its
    repeats; `*` stands for all members. `sizes` has the values of the symbols.
    """
    selected: list[Part] = []
    steps = prefix.split(".")
    for part in parts:
        path, count = part.path.split("."), int(part.repeats.at(sizes))
        numbered = [(step, pattern) for step, pattern in zip(steps, path, strict=False) if step != pattern]
        if len(path) < len(steps) or not all(_is_member(step, pattern, count) for step, pattern in numbered):
            continue
        if numbered and len(numbered) < sum("*" in pattern for pattern in path):
            raise InputError(f"'{part.path}' is counted for several members at once, so '{prefix}' is not known alone.")
        selected.append(replace(part, repeats=ONE) if numbered else part)
    return selected


def _is_member(step: str, pattern: str, count: int) -> bool:
    """Return whether a name in a module path, such as the 3 of layers.3, is a member that a pattern stands for.

    The pattern is "*", or such as "bias_l1…" for names that end in a number; it stands for `count` members.

    >>> _is_member("3", "*", 4), _is_member("4", "*", 4), _is_member("bias_l1", "bias_l1…", 1)
    (True, False, True)
    """
    stem, _, tail = pattern.partition("*" if "*" in pattern else "1…")
    first = 0 if "*" in pattern else 1
    number = step.removeprefix(stem).removesuffix(tail)
    return stem + number + tail == step != pattern and number.isdecimal() and first <= int(number) < first + count
