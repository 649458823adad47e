"""Checks of shapes, parts of a model and trainable parameters."""

import pytest
from typer.testing import CliRunner

import lemma
from lemma.checking.check_formula import check_formula
from lemma.checking.check_number import check_number
from lemma.checking.shapes import check_shapes
from lemma.cli.check import app
from lemma.errors import InputError


@pytest.mark.parametrize(
    ("line", "right", "reason"),
    [
        ("Q = (H, S, M_QK)", True, ""),
        ("Y = S x E", True, ""),
        ("concat = S×M_V*H", True, ""),
        ("scores = S×S", False, "The first axis, H, is missing."),
        ("Y = H×S×E", False, "The first axis, H, is one too many."),
        ("W_O = E×H*M_V", False, "The axes are in another order."),
        ("A = H×S×M_V", False, "That is the shape of V."),
        ("Q = H×S×E", False, ""),
    ],
)
def test_wrong_shape_is_explained(line: str, right: bool, reason: str) -> None:
    (checked,) = check_shapes("self-attention", [line]).lines
    assert (checked.equal, checked.reason) == (right, reason)


@pytest.mark.parametrize(
    "line",
    [
        "W_O = (H*M_V)×E",
        "W_O = ((H·M_V) × E)",
        "W_O = [H*M_V, E]",
        "W_O: (H M_V) x E",
        "W_O = (H*M_V)*E",
        "concat = S × (H × M_V)",
        "Q = H S M_QK",
        "Q = H*S*M_QK",
        "Q = HxSxM_QK",
        "Q = (H, S, M_{QK},)",
        "Q.shape = torch.Size([H, S, M_QK])",
        "Q ∈ R^{H×S×M_QK}",
        r"Q \in \mathbb{R}^{H \times S \times M_QK}",
    ],
)
def test_axes_are_read_in_usual_notations(line: str) -> None:
    (checked,) = check_shapes("self-attention", [line]).lines
    assert checked.equal, checked


@pytest.mark.parametrize("line", ["W_O = H×M_V×E", "W_O = H*(M_V×E)", "W_O = H*M_V*E", "Q = (H*S)×M_QK", "Y = S/E"])
def test_differently_grouped_axes_are_wrong(line: str) -> None:
    assert not check_shapes("self-attention", [line]).right


@pytest.mark.parametrize(
    "line", ["Q = (H, S", "Q = ×S", "Q = ", "Q = H,,S", "Q = S/(S+1)×E", "= S×E", "Q = 1×1×1×1×1×1×1×1×1"]
)
def test_invalid_shape_is_refused(line: str) -> None:
    with pytest.raises(InputError):
        check_shapes("self-attention", [line])


def test_unknown_tensor_and_invalid_line_are_explained() -> None:
    with pytest.raises(InputError, match=r"unknown tensor 'score'.*Did you mean 'scores'"):
        check_shapes("self-attention", ["score = S×S"])
    with pytest.raises(InputError, match="NAME = SHAPE"):
        check_shapes("self-attention", ["S×S"])


def test_trainable_parameters_are_checked_as_formula_number_and_ratio() -> None:
    assert check_formula("lora", "trainable", "R(W_in + W_out)").equal
    wrong = check_formula("lora", "trainable", "R W_in")
    assert wrong.residual == "-W_out*R" and "update.B" in str(wrong)
    sizes = {"W_in": 200, "W_out": 50, "R": 5}
    for quantity, value in (("trainable", "1,250"), ("frozen", "10,000"), ("trainable/frozen", "0.125")):
        assert check_number("lora", quantity, value, sizes).equal
    rotated = check_number("lora", "trainable/frozen", "8", sizes)
    assert not rotated.equal and rotated.right == "0.125" and "the other way round" in rotated.diagnosis[0]
    with pytest.raises(InputError, match="unknown quantity 'learned'"):
        check_number("lora", "learned", "1")


def test_parameters_of_modules_and_single_tensors_are_checked() -> None:
    assert check_number("table-a5", "parameters of layers", "5,259,264").equal
    assert check_number("table-a5", "parameters of layers.*", "5,259,264").equal  # as a count prints it
    assert check_number("table-a5", "parameters of layers.0", "2,629,632").equal
    assert check_number("table-a5", "parameters of layers.1", "2,629,632").equal
    with pytest.raises(InputError, match="Did you mean 'layers'"):
        check_number("table-a5", "parameters of layrs", "1")
    with pytest.raises(InputError, match="unknown part"):
        check_number("table-a5", "parameters of layers.2", "1")  # there are two
    assert check_number("lstm", "parameters of layers.weight_hh_l1", str(4 * 256**2), {"L": 3}).equal
    assert check_number("lstm", "parameters of layers.weight_ih_l2", str(4 * 256**2), {"L": 3}).equal


def test_module_paths_match_those_of_count() -> None:
    counted = lemma.count("decoder", quantities=["parameters"])
    for path in ("layers.*.attention", "layers.*", "embedding.weight"):
        parts = [part for part in counted.quantities["parameters"].groups if f"{part.path}.".startswith(f"{path}.")]
        number = sum(part.total.at(counted.symbols) for part in parts)
        assert check_number("decoder", f"parameters of {path}", str(number)).equal


def test_decoder_cache_holds_keys_and_values() -> None:
    assert check_number("decoder", "cache", str(2 * 4 * 64 * 128 * 4)).equal
    assert check_number("feed-forward", "cache", str(8 * 7)).equal  # its state is the last tokens
    assert lemma.count("encoder-decoder", quantities=["cache"]).cache.formula == "8*L_dec*d_h*B*(T + S)"


def test_exit_code_is_the_verdict_of_the_check() -> None:
    for words, status in (
        (["shape", "self-attention", "Q = H×S×M_QK"], 0),
        (["shape", "self-attention", "Q = S×M_QK", "--json"], 1),
        (["trainable", "lora", "R(W_in + W_out)"], 0),
        (["number", "lora", "trainable/frozen", "0.2"], 1),
    ):
        assert CliRunner().invoke(app, words).exit_code == status
