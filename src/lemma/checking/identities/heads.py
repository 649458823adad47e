"""Identities of attention heads: as relations, merged or separate, one or several."""

from dataclasses import replace
from fractions import Fraction

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lemma.checking.identities.base import (
    OPERATIONS_PER_DRAW,
    SEED,
    VISIBLE,
    Evidence,
    Finding,
    check_divisible,
    check_work,
    default_float64,
    expect_count,
    expect_nonzero,
    expect_zero,
    identity,
    random_module,
    run_recorded,
    sample_normal,
    setting,
)
from lemma.counting.count import count
from lemma.counting.polynomial import Polynomial, sum_polynomials, symbol
from lemma.counting.subject import factory_subject
from lemma.counting.writing import write_formula
from lemma.layers.attention import Attention, AttentionShape
from lemma.models.parser import log_arc_probabilities, log_attention
from lemma.report.curves import Curve, Plot
from lemma.tasks.parsing import attention_targets

ARCS = {
    "I": ("prefer", "nsubj"),
    "prefer": ("(top)", "root"),
    "the": ("flight", "det"),
    "morning": ("flight", "nmod"),
    "flight": ("prefer", "dobj"),
    "through": ("Denver", "case"),
    "Denver": ("flight", "nmod"),
}
"""The words of B1's sentence, each with its head and relation."""


@identity(
    "b1 relations dependency",
    title="A head as a dependency relation",
    claim="In 'I prefer the morning flight through Denver' the head dobj attending from prefer is 1 on flight, else 0.",
)
def relation_head(
    sharpness: float = setting(60.0, None, 1000, "the score of what is right; all others are 0", gt=0),
) -> Evidence:
    """Compare a parser's attention, from scores of `sharpness` on the arcs of a tree and 0 elsewhere, with the tree."""
    words, relations = list(ARCS), sorted({relation for _, relation in ARCS.values()})
    candidates = ["(top)", *words]
    targets = torch.tensor([[[candidates.index(head), relations.index(relation)] for head, relation in ARCS.values()]])
    scores = torch.zeros(1, len(relations), len(candidates), len(words), dtype=torch.float64)
    for dependent, (head, relation) in enumerate(targets[0].tolist()):
        scores[0, relation, head, dependent] = sharpness
    is_valid = torch.ones(1, len(words), dtype=torch.bool)
    null = torch.full((len(relations),), sharpness / 2, dtype=torch.float64)
    alpha = log_attention(scores, null, is_valid).exp()[0]
    dobj, flight = alpha[relations.index("dobj"), candidates.index("prefer")], candidates.index("flight")
    best = log_arc_probabilities(scores, is_valid)[0].flatten(0, 1).argmax(0)
    right = targets[0, :, 1] * len(candidates) + targets[0, :, 0]
    expected = attention_targets(targets, len(relations))[0].double()
    return Evidence(
        (
            Finding("head dobj from prefer, on flight", float(dobj[flight]), 1.0, 1e-9),
            expect_zero("the same head, on everything else together", float(dobj.sum() - dobj[flight]), 1e-9),
            expect_zero("all heads from all words − the weights that the tree asks for", alpha - expected, 1e-9),
            expect_count("words whose head and relation the scores give back", int((best == right).sum()), 7),
        ),
        ("word", "head", "relation"),
        tuple((word, *ARCS[word]) for word in words),
        ("From a word without such a dependent, a head attends to a null place; several dependents share evenly.",),
    )


@identity(
    "b6 merged query-key",
    title="One merged query–key matrix a head",
    claim="W^QK[j1,j2] = Σ_i W^Q[i,j1] W^K[i,j2] (per head), times 1/√I, gives the same attention without a key "
    "matrix.",
)
def merged_matrices(
    N: int = setting(10, 2, 2000, "number of inputs"),
    J: int = setting(24, 1, 1024, "their width"),
    I: int = setting(6, 1, 1024, "width of a head's queries and keys"),  # noqa: E741 - the source's letter
    H: int = setting(3, 1, 64, "number of heads"),
    seed: int = SEED,
) -> Evidence:
    """Compare attention with separate query and key matrices, with their product, and with the identity instead of it.

    The identity matrix, a plain inner product of the inputs, cannot replace the product: it is the same for every head.
    """
    maps, scores = H * J * (5 * I + 4 * J), H * N**2
    operations = 2 * N * maps + 6 * scores * (2 * I + J) + 2 * H * I * J**2 + OPERATIONS_PER_DRAW * maps
    numbers = maps + 5 * scores
    check_work(operations, numbers, N=N, J=J, I=I, H=H)
    shape = AttentionShape(width=J, heads=H, attention_width=H * I, causal=False, bias=False)
    separate = random_module(lambda: Attention(shape), seed)
    with default_float64():
        merged, identity_layer = (Attention(replace(shape, key_query="merged")) for _ in range(2))
    query, key, value = separate.query_key_value.weight.detach().split(H * I)
    matrices = [merged_weight(*pair) for pair in zip(query.split(I), key.split(I), strict=True)]
    with torch.no_grad():
        for layer, maps_per_head in ((merged, matrices), (identity_layer, [torch.eye(J, dtype=value.dtype)] * H)):
            layer.get_parameter("query_value.weight").copy_(torch.cat([*maps_per_head, value]))
            layer.output.weight.copy_(separate.output.weight)
    inputs = sample_normal(1, N, J, seed=seed)
    runs = [run_recorded(layer, inputs) for layer in (separate, merged, identity_layer)]
    outputs, weights = [output[0][0] for output, _ in runs], [record.weights()[0] for _, record in runs]
    spreads = [float((head_weights.amax(0) - head_weights.amin(0)).max()) for head_weights in weights]
    size = outputs[0].abs().max().clamp(min=1.0)
    findings = [
        expect_zero("outputs, merged − separate, largest entry", (outputs[1] - outputs[0]) / size),
        expect_zero("weights, merged − separate, largest entry", weights[1] - weights[0]),
    ]
    if H > 1:
        findings += [
            expect_nonzero("merged, heads differ: furthest two", spreads[1], VISIBLE),
            expect_zero("a plain inner product in its place, heads are one: furthest two", spreads[2]),
        ]
    return Evidence(
        tuple(findings),
        ("form", "query–key parameters a head", "kept for each token", "furthest heads"),
        (
            ("separate", 2 * I * J, f"{H * I} (keys)", spreads[0]),
            ("merged", J**2, f"{J} (the input itself)", spreads[1]),
            ("plain inner product", 0, f"{J} (the input itself)", spreads[2]),
        ),
        ("Furthest heads: the largest difference between two heads' weights for the same pair of tokens.",),
    )


def merged_weight(query: Float[Tensor, "I J"], key: Float[Tensor, "I J"]) -> Float[Tensor, "J J"]:
    """Return the merged query–key matrix (W_Qᵀ W_K)ᵀ of a head with the maps `query` and `key`, applied as W x."""
    return (query.T @ key).T


@identity(
    "b7 parameters merged-parameters",
    title="Parameters of a merged query–key matrix",
    claim="A merged query–key matrix has J² parameters a head, separate ones 2IJ; equal at I = J/2.",
)
def merged_parameters(
    J: int = setting(64, 2, 4096, "width of the inputs"),
    I: int = setting(16, 1, 4096, "width of a head's queries and keys"),  # noqa: E741 - the source's letter
) -> Evidence:
    """Count the query–key parameters of separate and merged matrices as formulas; check that these meet at I = J/2."""
    separate, merged = (query_key_parameters(factory, J, I) for factory in (separate_head, merged_head))
    head, width, order, sizes = symbol("I"), symbol("J"), ("I", "J"), {"I": I, "J": J}
    num_terms = len((separate - 2 * head * width).terms) + len((merged - width**2).terms)
    # a fraction where J is odd: no head is that wide, but the formulas meet there all the same
    meeting = float((merged - separate).at({"I": Fraction(J, 2), "J": J}))
    odd_note = f" (J is odd: between I = {J // 2} and I = {J // 2 + 1})" if J % 2 else ""
    widths = sorted({1, max(1, J // 8), max(1, J // 4), J // 2, (J + 1) // 2, I, 3 * J // 4, J})
    x = tuple(float(width_i) for width_i in sorted({max(1, J * step // 16) for step in range(1, 17)}))
    curves = (
        Curve("separate, 2IJ", x, tuple(2 * width_i * J for width_i in x)),
        Curve("merged, J²", x, tuple(float(J**2) for _ in x), dashed=True),
    )
    caption = f"Query–key parameters of one head at J = {J}; the two meet at I = J/2 = {J / 2:g}."
    formulas = [write_formula(formula, order, "unicode") for formula in (separate, merged)]
    return Evidence(
        (
            expect_count(f"separate, {formulas[0]} at I = {I}, J = {J}", int(separate.at(sizes)), 2 * I * J),
            expect_count(f"merged, {formulas[1]} at J = {J}", int(merged.at(sizes)), J**2),
            expect_count("formulas of the module − 2IJ and J²: terms left", num_terms, 0, "exact"),
            Finding(f"at I = J/2 = {J / 2:g}{odd_note}, merged − separate", meeting, 0.0, 0.0, "exact"),
        ),
        ("I", "separate, 2IJ", "merged, J²", "merged / separate"),
        tuple((width_i, 2 * width_i * J, J**2, J / (2 * width_i)) for width_i in widths),
        ("Usual heads are narrow (I = J/h), so that merging costs h/2 times as many; at I > J/2 it saves some.",),
        plot=Plot("width I of a head", "parameters", curves, rule=J / 2, caption=caption),
    )


def separate_head(J: int, I: int) -> Attention:  # noqa: E741
    """Build a head with separate query and key matrices and nothing else: J is the input width, I the head width."""
    return Attention(AttentionShape(J, 1, I, value_output="merged", bias=False))


def merged_head(J: int, I: int) -> Attention:  # noqa: E741
    """Build a head with a merged query–key matrix and nothing else: J is the input width, I the head width."""
    return Attention(AttentionShape(J, 1, I, key_query="merged", value_output="merged", bias=False))


def query_key_parameters(factory: object, J: int, I: int) -> Polynomial:  # noqa: E741
    """Return the number of query and key parameters of the attention that factory(J, I) builds, as a polynomial."""
    parts = count(factory_subject(factory, {"J": J, "I": I}), ["parameters"]).quantities["parameters"].groups
    return sum_polynomials(part.total for part in parts if "query" in part.path)


@identity(
    "c8 sum-over-heads heads",
    title="Multi-head attention as a sum over heads",
    claim="Y = Σ_h softmax(Q_h K_hᵀ/√D_k) X W^(h) with W^(h) = W_h^(v) W_h^(o).",
)
def sum_over_heads(
    N: int = setting(10, 1, 2000, "number of inputs"),
    D: int = setting(32, 1, 2048, "their width"),
    H: int = setting(4, 1, None, "number of heads; each is D/H wide"),
    bias: bool = setting(False, None, None, "whether the four maps have biases"),
    seed: int = SEED,
) -> Evidence:
    """Compare multi-head attention of PyTorch, and of Lemma with the same weights, with the sum over heads."""
    check_divisible("H", H, "D", D)
    operations = H * (6 * D**2 * (D + N) + 10 * N**2 * D) + 60 * N * D**2 + OPERATIONS_PER_DRAW * 4 * D**2
    numbers = 4 * H * D**2 + 2 * H * N * D + 2 * H * N**2 + 12 * D**2
    check_work(operations, numbers, N=N, D=D, H=H)
    inputs = sample_normal(N, D, seed=seed)
    layer = random_module(lambda: nn.MultiheadAttention(D, H, bias=bias, batch_first=True), seed)
    with torch.no_grad():
        reference = layer(*[inputs[None]] * 3, need_weights=False)[0][0]
        size = max(1.0, float(reference.abs().max()))
        matrices = [head_matrix(layer, head) for head in range(H)]
        parts = torch.stack([head_output(layer, inputs, head) for head in range(H)])
        summed = parts.sum(0)
        if bias:  # weights sum to 1, so every row gets what the biases of values and output add
            summed = summed + layer.in_proj_bias.chunk(3)[2] @ layer.out_proj.weight.T + layer.out_proj.bias
        label = "torch.nn.MultiheadAttention − the sum over heads, largest entry"
        findings = [expect_zero(label, (reference - summed) / size)]
        for layout in () if bias else ("separate", "merged"):
            with default_float64():
                ours = Attention(AttentionShape(D, H, causal=False, bias=False, value_output=layout))
            if layout == "separate":
                ours.query_key_value.weight.copy_(layer.in_proj_weight)
                ours.output.weight.copy_(layer.out_proj.weight)
            else:
                ours.get_parameter("query_key.weight").copy_(layer.in_proj_weight[: 2 * D])
                ours.output.weight.copy_(torch.cat(matrices).T)
            label = f"lemma.layers.attention.Attention, value–output {layout} − the sum, largest entry"
            findings.append(expect_zero(label, (ours(inputs[None])[0][0] - summed) / size))
        ranks = [int(torch.linalg.matrix_rank(matrix)) for matrix in matrices]
        fractions = [float(part.square().sum() / parts.sum(0).square().sum()) for part in parts]
    return Evidence(
        (*findings, expect_count("largest rank of a W^(h)", max(ranks), D // H)),
        ("head", "‖W^(h)‖", "share of ‖Y‖² if alone"),
        tuple((head, float(matrices[head].norm()), fractions[head]) for head in range(H)),
        (
            f"W^(h) is {D} × {D}, yet of rank D/H = {D // H} at most: merged it has D² numbers a head, apart 2D²/H.",
            *(["With biases every row also gets b^(v)W^(o) + b^(o), since weights sum to 1."] if bias else []),
        ),
    )


def head_output(layer: nn.MultiheadAttention, inputs: Float[Tensor, "N D"], head: int) -> Float[Tensor, "N D"]:
    """Return a head's term softmax(Q_h K_hᵀ/√D_k) X W^(h) of the sum over heads; h is `head`, X the inputs."""
    rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
    query, key, _ = layer.in_proj_weight.chunk(3)
    shifts = layer.in_proj_bias.chunk(3) if layer.in_proj_bias is not None else (query.new_zeros(len(query)),) * 3
    queries, keys = inputs @ query[rows].T + shifts[0][rows], inputs @ key[rows].T + shifts[1][rows]
    return (queries @ keys.T * layer.head_dim**-0.5).softmax(-1) @ inputs @ head_matrix(layer, head)


def head_matrix(layer: nn.MultiheadAttention, head: int) -> Float[Tensor, "D D"]:
    """Return W^(h) = W_h^(v) W_h^(o), a head's value map times its output map; h is `head`, from 0."""
    rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
    value = layer.in_proj_weight.chunk(3)[2][rows]
    return value.T @ layer.out_proj.weight[:, rows].T


@identity(
    "d3 single-multi heads-cost",
    title="Single against multi-head attention",
    claim="Single and multi-head attention both have 3d² parameters and take O(n²d + nd²) operations; multi-head pays "
    "h softmaxes a query.",
)
def head_costs(
    d: int = setting(64, 2, 4096, "width"),
    h: int = setting(8, 2, 64, "heads of the one that has several"),
    n: int = setting(32, 2, 4096, "tokens"),
) -> Evidence:
    """Compare parameters, operations and softmaxes of single-head and multi-head attention, both without output map."""
    check_divisible("h", h, "d", d)
    operations = 2 * (6 * n * d**2 + 8 * n**2 * d + 10 * h * n**2) + OPERATIONS_PER_DRAW * 6 * d**2
    numbers = 6 * d**2 + 2 * h * n**2
    check_work(operations, numbers, d=d, h=h, n=n)
    accounts = {
        "single": count(factory_subject(single_head, {"d": d, "n": n}), ["parameters", "flops"]),
        "multi": count(factory_subject(multi_head, {"d": d, "h": h, "n": n}), ["parameters", "flops"]),
    }
    width, tokens = symbol("d"), symbol("n")
    expected = {
        "parameters": ("parameters − 3d²", 3 * width**2),
        "flops": ("operations − 2(3nd² + 2n²d)", 2 * (3 * tokens * width**2 + 2 * tokens**2 * width)),
    }
    findings = []
    for quantity, (label, formula) in expected.items():
        for name, account in accounts.items():
            remainder = account.quantities[quantity].polynomial - formula
            findings.append(expect_count(f"{name}: {label}: terms left", len(remainder.terms), 0, "a formula"))
    softmaxes = {}
    for name, heads in (("single", 1), ("multi", h)):
        _, record = run_recorded(multi_head(d, heads), _zero_inputs(d, n))
        softmaxes[name] = record.weights().shape[:-1].numel()
    ratio = softmaxes["multi"] / softmaxes["single"]
    rows = []
    for name, account in accounts.items():
        figures = (int(quantity.polynomial.at(account.symbols)) for quantity in account.quantities.values())
        rows.append((name, *figures, softmaxes[name]))
    return Evidence(
        (*findings, Finding("softmaxes: multi / single", ratio, h, 0, "a count")),
        ("attention", "parameters", "operations", "softmaxes"),
        tuple(rows),
        ("Operations: those of matrix products, a multiply–add counted as two. Time: lemma study heads.",),
    )


def single_head(d: int) -> Attention:
    """Build attention with a single head of width d and no output map."""
    return multi_head(d, 1)


def multi_head(d: int, h: int) -> Attention:
    """Build attention with h heads of width d/h and no output map."""
    return Attention(AttentionShape(d, h, value_output="none", bias=False, causal=False))


def _zero_inputs(d: int, n: int = 32) -> Tensor:
    """Return a batch of one sequence of n zero vectors of width d, as the input of a count."""
    return torch.zeros(1, n, d)


single_head.inputs = _zero_inputs  # pyright: ignore[reportFunctionMemberAccess]
multi_head.inputs = _zero_inputs  # pyright: ignore[reportFunctionMemberAccess]
