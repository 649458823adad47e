"""The cells whose gradients can be checked, and their values by autograd."""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Generator, Tensor

from lemma.checking.expressions import Equation, Evaluator, Node, Shape, parse_equation, subtrees, variable


@dataclass(frozen=True)
class GradientCell:
    """One step of a network. Its gradients are the derivatives of `loss`, the last of the equations."""

    name: str
    about: str
    sizes: dict[str, str]
    """The sizes with their meaning, such as {"n_a": "hidden units"}."""
    given: dict[str, str]
    """Inputs and parameters with their rows and columns, such as {"W_f": "n_a n_a+n_x"}."""
    equations: str
    one_hot: tuple[str, ...] = ()
    """Given vectors with a single 1, which nobody derives by."""
    incoming: tuple[str, ...] = ()
    """Gradients that arrive from elsewhere; they are given."""
    aliases: dict[str, str] = field(default_factory=dict)
    """Other spellings of names; each holds for the gradient too."""

    @cached_property
    def forward(self) -> tuple[Equation, ...]:
        """The forward equations in order, the loss last."""
        return tuple(parse_equation(line.strip()) for line in self.equations.strip().splitlines())

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """The intermediates in the order of their computation, without the loss."""
        return tuple(equation.name for equation in self.forward[:-1])

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Every name that has a value in the forward pass or is given, sizes first."""
        return (*self.sizes, *self.given, *self.steps)

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """The gradients that can be derived."""
        fixed = {*self.one_hot, *self.incoming}
        names = [f"d{name}" for name in (*self.given, *self.steps) if name not in fixed]
        return tuple(name for name in names if name not in fixed)

    @cached_property
    def known(self) -> frozenset[str]:
        """Every name of the cell."""
        return frozenset((*self.values, *self.gradients))

    def canonical(self, name: str) -> str:
        """The cell's own spelling of a name; a name it does not know stays as it is."""
        if name in self.known:
            return name
        if name in self.aliases:
            return self.aliases[name]
        rest = self.aliases.get(name[1:]) if name.startswith("d") else None
        return f"d{rest}" if rest and f"d{rest}" in self.known else name

    def depth(self, name: str) -> int:
        """How far into the forward pass a name's value is computed; given values are at -1."""
        value = name[1:] if name in self.gradients else name
        return self.steps.index(value) if value in self.steps else -1

    @cached_property
    def activations(self) -> tuple[tuple[str, str, Node], ...]:
        """Every (function, input, output) of the forward pass; the output is a name if it has one."""
        found = []
        for equation in self.forward:
            for path, node in subtrees(equation.expression):
                match node:
                    case Node("sigmoid" | "tanh" as function, (Node("name", _, pre),)):
                        found.append((function, pre, node if path else variable(equation.name)))
        return tuple(found)


ATTENTION = GradientCell(
    name="attention",
    about=(
        "One head of self-attention without a mask. Tokens are the rows of X; each row of alpha sums to one. "
        "S holds the scores with the factor 1/sqrt(d_k) in them. dout, the gradient of the output, is given."
    ),
    sizes={"n": "tokens", "d": "width of a token", "d_k": "width of a query", "d_v": "width of a value"},
    given={"X": "n d", "W_q": "d d_k", "W_k": "d d_k", "W_v": "d d_v", "dout": "n d_v"},
    equations="""
        Q = X @ W_q
        K = X @ W_k
        V = X @ W_v
        S = Q @ K.T / sqrt(d_k)
        alpha = softmax(S)
        out = alpha @ V
        loss = sum(dout * out)
    """,
    incoming=("dout",),
    aliases={
        **{f"W_{name.upper()}": f"W_{name}" for name in "qkv"},
        "A": "alpha",
        "scores": "S",
        "O": "out",
        "Out": "out",
        "dO": "dout",
        "dOut": "dout",
    },
)

GRU = GradientCell(
    name="gru",
    about=(
        "One GRU step in the variant of torch.nn.GRU: the reset gate r acts on q = U_n @ h_prev + v_n, after the "
        "product, and h = (1 - z) * n + z * h_prev. Vectors are columns; W acts on the input and U on the state. "
        "PyTorch's two biases of a gate (b_ir and b_hr) have the same gradient and are one here; b_in and b_hn are "
        "b_n and v_n. A softmax output and its cross-entropy follow; dh_next arrives from the next step, and dh is "
        "the whole gradient, that included."
    ),
    sizes={"n_h": "hidden units", "n_x": "inputs", "n_y": "classes"},
    given={
        "x": "n_x 1",
        "h_prev": "n_h 1",
        **{f"W_{gate}": "n_h n_x" for gate in "rzn"},
        **{f"U_{gate}": "n_h n_h" for gate in "rzn"},
        **{f"b_{gate}": "n_h 1" for gate in "rzn"},
        "v_n": "n_h 1",
        "W_y": "n_y n_h",
        "b_y": "n_y 1",
        "y": "n_y 1",
        "dh_next": "n_h 1",
    },
    equations="""
        pre_r = W_r @ x + U_r @ h_prev + b_r
        r = sigmoid(pre_r)
        pre_z = W_z @ x + U_z @ h_prev + b_z
        z = sigmoid(pre_z)
        q = U_n @ h_prev + v_n
        pre_n = W_n @ x + b_n + r * q
        n = tanh(pre_n)
        h = (1 - z) * n + z * h_prev
        logits = W_y @ h + b_y
        y_hat = softmax(logits)
        loss = -sum(y * log(y_hat)) + sum(dh_next * h)
    """,
    one_hot=("y",),
    incoming=("dh_next",),
    aliases={
        **{f"{letter}_r": "r" for letter in ("G", "Gamma", "gamma")},
        **{f"{letter}_{gate}": "z" for letter in ("G", "Gamma", "gamma") for gate in "zu"},
        "h_tilde": "n",
    },
)

LSTM = GradientCell(
    name="lstm",
    about=(
        "One LSTM step with update, forget and output gates G_u, G_f, G_o and candidate c_tilde, a softmax output and "
        "its cross-entropy. Vectors are columns; ax = [a_prev; x] is stacked. da_next and dc_next arrive from the "
        "next step; da and dc are the whole gradients, these included."
    ),
    sizes={"n_a": "hidden units", "n_x": "inputs", "n_y": "classes"},
    given={
        "x": "n_x 1",
        "a_prev": "n_a 1",
        "c_prev": "n_a 1",
        **{f"W_{gate}": "n_a n_a+n_x" for gate in "ufoc"},
        **{f"b_{gate}": "n_a 1" for gate in "ufoc"},
        "W_y": "n_y n_a",
        "b_y": "n_y 1",
        "y": "n_y 1",
        "da_next": "n_a 1",
        "dc_next": "n_a 1",
    },
    equations="""
        ax = [a_prev; x]
        pre_u = W_u @ ax + b_u
        pre_f = W_f @ ax + b_f
        pre_o = W_o @ ax + b_o
        pre_c = W_c @ ax + b_c
        G_u = sigmoid(pre_u)
        G_f = sigmoid(pre_f)
        G_o = sigmoid(pre_o)
        c_tilde = tanh(pre_c)
        c = G_f * c_prev + G_u * c_tilde
        a = G_o * tanh(c)
        z = W_y @ a + b_y
        y_hat = softmax(z)
        loss = -sum(y * log(y_hat)) + sum(da_next * a) + sum(dc_next * c)
    """,
    one_hot=("y",),
    incoming=("da_next", "dc_next"),
    aliases={
        **{f"{letter}_{gate}": f"G_{gate}" for letter in ("Gamma", "gamma") for gate in "ufo"},
        **{f"z_{gate}": f"pre_{gate}" for gate in "ufoc"},
        **{f"pre_G_{gate}": f"pre_{gate}" for gate in "ufo"},
        **{f"pre_Gamma_{gate}": f"pre_{gate}" for gate in "ufo"},
        "pre_c_tilde": "pre_c",
        "G_i": "G_u",
        "h": "a",
        "h_prev": "a_prev",
        "dh_next": "da_next",
    },
)

RNN = GradientCell(
    name="rnn",
    about=(
        "One step of a recurrent language model with sigmoid hidden units and the cross-entropy of its softmax. "
        "Vectors are rows; w is the current word, one-hot, and x = L_x its row of the embedding L. Nothing arrives "
        "from later steps. delta1 and delta2 are the gradients of z1 and z2."
    ),
    sizes={"n_V": "words", "d": "embedding width", "D": "hidden units"},
    given={
        "w": "1 n_V",
        "h_prev": "1 D",
        "L": "n_V d",
        "H": "D D",
        "I": "d D",
        "U": "D n_V",
        "b1": "1 D",
        "b2": "1 n_V",
        "y": "1 n_V",
    },
    equations="""
        x = w @ L
        z1 = h_prev @ H + x @ I + b1
        h = sigmoid(z1)
        z2 = h @ U + b2
        y_hat = softmax(z2)
        loss = -sum(y * log(y_hat))
    """,
    one_hot=("w", "y"),
    aliases={
        "L_x": "x",
        **{f"delta{mark}{index}": f"dz{index}" for mark in ("", "_") for index in (1, 2)},
        **{f"{name}_{index}": f"{name}{index}" for name in "bz" for index in (1, 2)},
    },
)

SOFTMAX_CROSS_ENTROPY = GradientCell(
    name="softmax-cross-entropy",
    about="The cross-entropy of softmax(z) with the one-hot target y. Vectors are columns.",
    sizes={"n": "classes"},
    given={"z": "n 1", "y": "n 1"},
    equations="""
        y_hat = softmax(z)
        loss = -sum(y * log(y_hat))
    """,
    one_hot=("y",),
    aliases={"p": "y_hat"},
)

CELLS = {cell.name: cell for cell in (LSTM, GRU, RNN, ATTENTION, SOFTMAX_CROSS_ENTROPY)}
"""The cells by name."""


@dataclass(frozen=True)
class Sample:
    """The sizes drawn, and the values of all names of a cell there."""

    lengths: dict[int, str]
    """What a length stands for: every size, and every sum of sizes that the cell uses, has a different length."""
    values: dict[str, Tensor]

    def spelled(self, shape: Shape) -> str:
        """A shape in the names of the sizes."""
        if not shape:
            return "a number"
        return f"({', '.join(self.lengths.get(length, str(length)) for length in shape)})"


@lru_cache
def draw_samples(name: str) -> tuple[Sample, ...]:
    """The random draws of sizes and inputs at which a derivation for this cell is judged, always the same."""
    return tuple(draw(CELLS[name], seed) for seed in (0, 1))


def draw(cell: GradientCell, seed: int) -> Sample:
    """Draw sizes and inputs, run the equations forward, and let autograd run them backward.

    All sizes, and all sums of them that the cell uses, have different lengths, so that no wrong shape fits by chance.
    """
    generator, lengths = Generator().manual_seed(seed), dict[str, int]()
    spelled = {side for sides in cell.given.values() for side in sides.split()} | {*cell.sizes, "1"}
    while not lengths or len(set(lengths.values())) < len(lengths):
        drawn = (torch.randperm(8, generator=generator) + 2).tolist()
        sizes = dict(zip(cell.sizes, drawn, strict=False)) | {"1": 1}
        lengths = {side: sum(sizes[part] for part in side.split("+")) for side in sorted(spelled)}
    values = {name: torch.tensor(float(lengths[name]), dtype=torch.float64) for name in cell.sizes}
    for name, sides in cell.given.items():
        rows, columns = (lengths[side] for side in sides.split())
        if name in cell.one_hot:
            which = int(torch.randint(rows * columns, (), generator=generator))
            values[name] = torch.eye(rows * columns, dtype=torch.float64)[which].reshape(rows, columns)
        else:
            values[name] = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
        values[name].requires_grad_(f"d{name}" in cell.gradients)
    with torch.enable_grad():
        for equation in cell.forward:
            values[equation.name] = Evaluator(values)(equation.expression)
    sources = [values[gradient[1:]] for gradient in cell.gradients]
    gradients = torch.autograd.grad(values.pop("loss"), sources)
    detached = {name: value.detach() for name, value in values.items()}
    named = {length: name for name, length in lengths.items()}
    return Sample(named, {**detached, **dict(zip(cell.gradients, gradients, strict=True))})
