"""Products written as multiplications and sums count as their einsum; elementwise work of norms and gates does not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lemma.counting.measure import find_uncounted, product_flops, read_pass, reference_kernels
from lemma.counting.subject import Inputs

A, B, C, D, E = 2, 3, 4, 5, 6  # sizes of the axes a, b, …
SIZES = dict(zip("abcde", (A, B, C, D, E), strict=True))


class Formula(nn.Module):
    """A function of parameters whose axes are named by letters."""

    def __init__(self, function: Callable[..., Tensor], *axes: str) -> None:
        super().__init__()
        shapes = [[SIZES[letter] for letter in letters] for letters in axes]
        self.function, self.factors = function, nn.ParameterList(torch.rand(shape) for shape in shapes)

    def forward(self) -> Tensor:
        return self.function(*self.factors)


def flops(module: nn.Module, *inputs: Tensor, device: str = "cpu") -> tuple[int, int]:
    with reference_kernels():
        rows = product_flops(module.to(device), Inputs(tuple(value.to(device) for value in inputs))).values()
    return sum(row[0] for row in rows), sum(row[2] for row in rows)


CONTRACTIONS: dict[str, Callable[..., Tensor]] = {
    "ab,ab->a": lambda x, y: (x * y).sum(-1),
    "ab,ab->": lambda x, y: torch.sum(x * y),
    "abc,c->ab": lambda x, y: (x * y).sum(2),
    "abc,abd->acd": lambda x, y: (x.unsqueeze(3) * y.unsqueeze(2)).sum(1),
    "ab,bc->ac": lambda x, y: (x[:, :, None] * y).permute(0, 2, 1).contiguous().sum(-1),
    "abc,abc->ab": lambda x, y: torch.linalg.vecdot(x, y),
    "abc,adc->abd": lambda x, y: -(x[:, :, None] * y[:, None] * 3.0).masked_fill(x[:, :, None, :1] > 0.5, 0).sum(-1),
    "ab,cb->ac": lambda x, y: (x[:, None] * y).double().sum(-1),
    "abc,bcd->ad": lambda x, y: (x.reshape(A, -1, 1) * y.reshape(-1, D)).sum(1),
    "ab,ab,ab->a": lambda x, y, z: (x * y * z).sum(-1),
    "ab,ab,bc->ac": lambda x, y, z: ((x * y)[..., None] * z).sum(1),
    "ab,ac->bc": lambda x, y: torch.stack([x[i, :, None] * y[i] for i in range(A)]).sum(0),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("equation", CONTRACTIONS)
def test_multiplications_that_are_summed_count_as_their_einsum(equation: str, device: str) -> None:
    axes = equation.partition("->")[0].split(",")
    rewritten = flops(Formula(lambda *factors: torch.einsum(equation, *factors), *axes), device=device)
    assert rewritten[0] > 0
    assert flops(Formula(CONTRACTIONS[equation], *axes), device=device) == rewritten


def test_sums_by_index_count_as_products_with_a_sparse_matrix() -> None:
    index = torch.tensor([0, 2, 2])

    def gather_weighted(x: Tensor, w: Tensor, function: Callable[..., Tensor]) -> Tensor:
        return function(torch.zeros(C, D), x * w[:, None])

    for add in (
        lambda out, rows: out.index_add(0, index, rows),
        lambda out, rows: out.index_add_(0, index, rows),
        lambda out, rows: out.scatter_add(0, index[:, None].expand(B, D), rows),
        lambda out, rows: out.index_put((index,), rows, accumulate=True),
    ):
        module = Formula(lambda x, w, add=add: gather_weighted(x, w, add), "bd", "b")
        assert flops(module) == (2 * B * D, 4 * B * D)


def scan(update: Callable[[Tensor, Tensor, Tensor], Tensor], steps: int = 7) -> nn.Module:
    """Return a module with a state of (C, D) that decays by `a` and takes up the outer product of `k` and `v`."""

    def run(a: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state = torch.zeros(C, D)
        for _ in range(steps):
            state = update(a * state, k, v)
        return state

    return Formula(run, "cd", "c", "d")


@pytest.mark.parametrize(
    "update",
    [
        lambda state, k, v: state + k[:, None] * v,
        lambda state, k, v: torch.einsum("c,d->cd", k, v) + state,
        lambda state, k, v: state.add(k[:, None] * v * 0.5),
        lambda state, k, v: torch.addcmul(state, k[:, None], v),
        lambda state, k, v: state.sub_(k[:, None] * v),
    ],
)
def test_step_of_a_matrix_state_is_two_multiply_adds_for_each_element(update: Callable[..., Tensor]) -> None:
    steps, step = 7, 2 * C * D
    forward, backward = flops(scan(update, steps))
    assert forward == 2 * step * steps
    if update(torch.zeros(C, D), torch.zeros(C), torch.zeros(D)).grad_fn is None:
        assert backward == 4 * step * steps - step  # the first state needs no gradient


def test_states_that_are_vectors_are_elementwise_as_in_an_lstm() -> None:
    def run(a: Tensor, x: Tensor) -> Tensor:
        state = torch.zeros(D)
        for _ in range(7):
            state = a * state + (1 - a) * x
        return state

    assert flops(Formula(run, "d", "d")) == (0, 0)
    recurrent = flops(nn.LSTM(D, C), torch.rand(B, A, D))
    assert recurrent[0] == 2 * B * A * 4 * C * (D + C)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return (
        x * torch.cat([angles, angles], -1).cos()
        + torch.cat([-right, left], -1) * torch.cat([angles, angles], -1).sin()
    )


ELEMENTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "RMS norm": lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
    "squares": lambda x, w: x / ((x * x).sum(-1, keepdim=True) + 1) * w,
    "gate": lambda x, w: x * torch.sigmoid(x) * w + x,
    "layer scale": lambda x, w: x + w * (x + w * x),
    "rotation": lambda x, w: rotate(x * w, torch.arange(A)[:, None, None] * torch.rand(D // 2 + 1)),
    "slopes": lambda x, w: torch.rand(B, 1) * torch.arange(E) + x * w,
    "table": lambda x, w: x * w + torch.arange(B * 1.0)[:, None] @ torch.rand(1, E),
    "entropy of nothing": lambda x, w: torch.outer(torch.rand(B), torch.rand(E)).sum() * x * w,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_work_and_constants_are_no_products(name: str) -> None:
    assert flops(Formula(ELEMENTWISE[name], "abe", "e")) == (0, 0)


def test_a_counted_multiplication_is_not_elementwise_work_too() -> None:
    for contract in (lambda x, y: torch.einsum("ab,ab->a", x, y), lambda x, y: (x * y).sum(-1)):
        rows = read_pass(Formula(contract, "ab", "ab"), Inputs(())).elementwise
        assert sum(row[0] for row in rows.values()) == 0


class StateSpaceDuality(nn.Module):
    """One chunk of Mamba-2 with its carried state, as einsums or as transformers 5.17 writes it on CPUs."""

    def __init__(self, as_einsum: bool, chunk: int = 4, heads: int = 3, width: int = 5, state: int = 6) -> None:
        super().__init__()
        self.as_einsum = as_einsum
        self.C, self.B = (nn.Parameter(torch.rand(2, chunk, heads, state)) for _ in range(2))
        self.x, self.decay = nn.Parameter(torch.rand(2, chunk, heads, width)), nn.Parameter(torch.rand(2, heads, chunk))
        self.carried = nn.Parameter(torch.rand(2, heads, width, state))

    def forward(self) -> Tensor:
        mask = torch.tril(self.decay[:, :, :, None] - self.decay[:, :, None]).permute(0, 2, 3, 1)  # (b, l, s, h)
        faded = self.B * self.decay.permute(0, 2, 1)[..., None]
        if self.as_einsum:
            scores = torch.einsum("blhn,bshn->blsh", self.C, self.B) * mask
            inner = torch.einsum("blsh,bshp->blhp", scores, self.x)
            state = torch.einsum("bshn,bshp->bhpn", faded, self.x)
            return inner + torch.einsum("blhn,bhpn->blhp", self.C, state + self.carried)
        scores = (self.C[:, :, None] * self.B[:, None]).sum(-1) * mask
        inner = (scores[..., None] * self.x[:, None]).sum(2)
        state = (faded[..., None, :] * self.x[..., None]).sum(1)
        return inner + (self.C[..., None, :] * (state + self.carried)[:, None]).sum(-1)


def test_state_space_duality_counts_the_same_in_both_notations() -> None:
    batch, chunk, heads, width, state = 2, 4, 3, 5, 6
    expected = 2 * batch * heads * chunk * (chunk * state + chunk * width + 2 * state * width)
    for as_einsum in (True, False):
        assert flops(StateSpaceDuality(as_einsum)) == (expected, 2 * expected)


def test_mamba_has_six_flops_for_each_element_of_its_state_and_step() -> None:
    transformers = pytest.importorskip("transformers")
    d, inner, n, r, kernel, tokens = 16, 32, 4, 3, 4, 9
    sizes = {"hidden_size": d, "intermediate_size": inner, "state_size": n, "time_step_rank": r, "conv_kernel": kernel}
    config = transformers.MambaConfig(**sizes, expand=2, vocab_size=11, num_hidden_layers=1, use_cache=False)
    module = transformers.AutoModel.from_config(config)
    linear = d * 2 * inner + inner * (r + 2 * n) + r * inner + inner * d
    convolution = 2 * inner * kernel * (tokens + kernel - 1)  # at the padded end, too
    forward, backward = flops(module, torch.zeros(1, tokens, dtype=torch.long))
    scan_flops = 2 * 3 * inner * n * tokens  # decay, input and output
    assert forward == 2 * tokens * linear + convolution + scan_flops
    assert backward == 2 * forward - 2 * inner * n  # the first state needs no gradient


class Both(nn.Module):
    """A layer of parameters `W` and an input, which needs gradients as inside a network."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.function, self.W = function, nn.Parameter(torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x.requires_grad_(), self.W)


X, TABLE = (2, 6, 8), torch.tensor([[0, 1], [2, 3], [3, 3]])
LINEAR = 2 * 6 * 8  # rows times width of an input of shape X
OPERATORS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], int]] = {  # multiply–adds by hand
    "depthwise": (lambda x, W: nn.functional.conv1d(x, W, groups=6), (6, 1, 3), 2 * 6 * 6 * 3),
    "grouped": (lambda x, W: nn.functional.conv1d(x, W, groups=2, stride=2), (4, 3, 2), 2 * 4 * 4 * 3 * 2),
    "padded": (lambda x, W: nn.functional.conv1d(x, W, padding=2), (5, 6, 3), 2 * 5 * 10 * 6 * 3),
    "image": (lambda x, W: nn.functional.conv2d(x[:, None], W), (3, 1, 2, 4), 2 * 3 * 5 * 5 * 2 * 4),
    "transposed": (lambda x, W: nn.functional.conv_transpose1d(x, W), (6, 5, 3), 2 * 6 * 8 * 5 * 3),
    "transposed in groups": (
        lambda x, W: nn.functional.conv_transpose1d(x, W, groups=3, stride=2),
        (6, 5, 3),
        2 * 6 * 8 * 5 * 3,
    ),
    "time first": (lambda x, W: torch.conv_tbc(x, W, torch.zeros(5)), (2, 8, 5), 1 * 6 * 8 * 5 * 2),
    "inner": (lambda x, W: torch.inner(x, W), (5, 8), LINEAR * 5),
    "tensordot": (lambda x, W: torch.tensordot(x, W, dims=2), (6, 8, 3), LINEAR * 3),
    "kron, summed": (lambda x, W: torch.kron(x[0], W).sum(), (3, 2), 6 * 8 * 6),
    "weighted bag": (
        lambda x, W: nn.functional.embedding_bag(TABLE, W, per_sample_weights=x[0, :3, :2].contiguous(), mode="sum"),
        (4, 7),
        TABLE.numel() * 7,
    ),
    "grouped matrices": (
        lambda x, W: nn.functional.grouped_mm(x[0], W, offs=torch.tensor([2, 6], dtype=torch.int32)),
        (2, 8, 8),
        6 * 8 * 8,
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_count_their_multiply_adds_forward_and_for_both_gradients(name: str) -> None:
    function, shape, multiply_adds = OPERATORS[name]
    assert flops(Both(function, *shape), torch.rand(X)) == (2 * multiply_adds, 4 * multiply_adds)


def test_bilinear_layer_counts_as_two_contractions() -> None:
    layer = nn.Bilinear(3, 4, 5, bias=False)
    left, right = torch.rand(2, 3), torch.rand(2, 4)
    by_einsum = flops(Formula(lambda x, W, y: torch.einsum("ab,dbc,ac->ad", x, W, y), "ab", "dbc", "ac"))
    assert flops(layer, left, right)[0] == by_einsum[0] == 2 * 2 * 5 * (3 * 4 + 4)


def test_weighted_bag_without_weights_is_a_look_up() -> None:
    assert flops(nn.EmbeddingBag(4, 7), TABLE) == (0, 0)


def test_nothing_is_counted_or_named_but_all_is_one_of_both() -> None:
    def names(function: Callable[[Tensor, Tensor], Tensor]) -> set[str]:
        rows = find_uncounted(Both(function, 6, 6), Inputs((torch.rand(6, 6),)))
        return {key.partition(" ")[0] for key in rows}

    grid = torch.zeros(1, 3, 3, 2)
    uncounted: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "aten._fft_r2c": lambda x, W: torch.fft.rfft(x * W).abs(),
        "aten._cdist_forward": lambda x, W: torch.cdist(x, W),
        "aten.linalg_inv_ex": lambda x, W: torch.linalg.inv(x + W + torch.eye(6)),
        "aten.linalg_matrix_exp": lambda x, W: torch.linalg.matrix_exp(x + W),
        "aten.affine_grid_generator": lambda x, W: nn.functional.affine_grid(W[:2, :3][None], [1, 1, 5, 5]) + x.sum(),
        "aten.grid_sampler_2d": lambda x, W: nn.functional.grid_sample((x * W)[None, None], grid, align_corners=False),
        "aten._sparse_addmm": lambda x, W: torch.sparse.mm(torch.eye(6).to_sparse(), x * W),
    }
    for operator, function in uncounted.items():
        assert operator in names(function), operator


def test_higher_order_scan_counts_its_steps_and_names_its_backward_pass() -> None:
    from torch._higher_order_ops.scan import scan as higher_order_scan

    def run(x: Tensor, W: Tensor) -> Tensor:
        step = lambda state, row: (torch.tanh(row @ W + state), (row + state).clone())  # noqa: E731
        return higher_order_scan(step, torch.zeros(6), x)[1]  # pyright: ignore[reportIndexIssue]

    module = Both(lambda x, W: run(x.detach(), W), 6, 6)
    assert flops(module, torch.rand(5, 6))[0] == 5 * 2 * 6 * 6
    assert find_uncounted(module, Inputs((torch.rand(5, 6),)))["scan "][1] > 0


def multiply(x: Tensor, W: Tensor) -> Tensor:
    return x @ W


def test_scripted_and_compiled_functions_are_counted() -> None:
    for function in (torch.jit.script(multiply), torch.compile(multiply, backend="eager")):
        assert flops(Both(function, 6, 5), torch.rand(3, 6)) == (2 * 3 * 6 * 5, 4 * 3 * 6 * 5)
