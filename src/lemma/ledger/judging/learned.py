"""What a person may ask the number of: a quantity, what of it learns, the share of a part, the ratio of two."""

from collections.abc import Sequence
from dataclasses import replace

from lemma.errors import InputError, unknown
from lemma.ledger.account import Account
from lemma.ledger.counting import QUANTITIES, Conventions, count
from lemma.ledger.polynomial import ONE
from lemma.ledger.quantity import Part
from lemma.ledger.subject import Subject

LEARNED = ("trainable", "frozen")
"""Both are taken from the parameters: what an optimizer moves, and what it leaves as it is."""
JUDGED = (*QUANTITIES, *LEARNED)


def split_ratio(quantity: str) -> tuple[str, ...]:
    """The quantities that are named: one, or two with a stroke between them; each may be `of` a part.

    >>> split_ratio("trainable/frozen"), split_ratio("parameters of encoder")
    (('trainable', 'frozen'), ('parameters of encoder',))
    """
    names = tuple(" ".join(name.split()) for name in quantity.split("/"))
    for name in names:
        if name.partition(" of ")[0] not in JUDGED:
            raise InputError(unknown("quantity", name, JUDGED))
    if len(names) > 2:
        raise InputError(f"'{quantity}': one quantity, or two with one stroke between them, as in trainable/frozen.")
    return names


def account_for(subject: Subject, names: Sequence[str], conventions: Conventions) -> Account:
    """An account that has these quantities: those that learn, and those of a part, among them."""
    plain = [name.partition(" of ")[0] for name in names]
    counted = dict.fromkeys("parameters" if name in LEARNED else name for name in plain)
    account = count(subject, tuple(counted), conventions)
    made = dict(account.quantities)
    for name in names:
        kind, _, place = name.partition(" of ")
        if kind in LEARNED or place:
            whole = account.quantities["parameters" if kind in LEARNED else kind]
            kept = [
                part for part in whole.parts if kind not in LEARNED or ("frozen" in part.note) == (kind == "frozen")
            ]
            made[name] = replace(whole, parts=tuple(_of(place, kept, account.model) if place else kept))
    return replace(account, quantities=made)


def _of(place: str, parts: Sequence[Part], model: str) -> list[Part]:
    """The parts below a path; below one with a star, such as encoder.layers.*, those of one member."""
    found = [part for part in parts if part.path == place or part.path.startswith(f"{place}.")]
    if not found:
        steps = [part.path.split(".") for part in parts]
        known = dict.fromkeys(".".join(path[:depth]) for path in steps for depth in range(1, len(path)))
        raise InputError(unknown(f"{model}: the part", place, known))
    return [replace(part, repeats=ONE) for part in found] if "*" in place else found
