"""Writing a tree back in the language it was read from."""

from lemma.ledger.gradients.tree import WHOLE, Binary, Call, Name, Negative, Node, Number, Power, Slice, Transpose

PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 2}
_UNARY, _POSTFIX = 3, 4


def written(node: Node) -> str:
    """A tree in the language it was read from, with no bracket that is not needed.

    >>> written(Binary("*", Name("h"), Binary("-", Number("1"), Name("h"))))
    'h * (1 - h)'
    """
    match node:
        case Number(text):
            return text
        case Name(name):
            return name
        case Negative(inner):
            return f"-{_bracketed(inner, _UNARY)}"
        case Binary(sign, left, right):
            level = PRECEDENCE[sign]
            associative = isinstance(right, Binary) and right.sign == sign and sign in "+*"
            return f"{_bracketed(left, level)} {sign} {_bracketed(right, level + (not associative))}"
        case Power(inner, exponent):
            return f"{_bracketed(inner, _POSTFIX)}^{exponent}"
        case Transpose(inner):
            return f"{_bracketed(inner, _POSTFIX)}.T"
        case Slice(inner):
            return f"{_bracketed(inner, _POSTFIX)}[{_ranges(node)}]"
        case Call("concat", arguments):
            return f"[{'; '.join(map(written, arguments))}]"
        case Call(function, arguments, axis):
            along = "" if axis is None else f", axis={axis}"
            return f"{function}({', '.join(map(written, arguments))}{along})"


def _ranges(node: Slice) -> str:
    spelled = [":".join("" if end is None else str(end) for end in ends) for ends in (node.rows, node.columns)]
    return spelled[0] if node.columns == WHOLE else ", ".join(spelled)


def _bracketed(node: Node, level: int) -> str:
    match node:
        case Binary(sign):
            binds = PRECEDENCE[sign]
        case Negative():
            binds = _UNARY
        case Power():
            binds = _UNARY if level == _UNARY else _POSTFIX
        case _:
            binds = _POSTFIX
    return written(node) if binds >= level else f"({written(node)})"
