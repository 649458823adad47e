"""The options of peft's LoRA: those that are written, those that are read, and those that are refused by name."""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from lemma.adaptation import Update
from lemma.adaptation.tree import plain_modules
from lemma.errors import RunError, SpecError
from lemma.spec import Lora

READ = {"r", "lora_alpha", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern", "peft_type", "bias"}
SAID_BY_THE_TENSORS = {
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "fan_in_fan_out",
    "init_lora_weights",
    "eva_config",
    "ensure_weight_tying",
}
"""Options that say where updates stand and how they began: the tensors' names and values say it too."""
WITHOUT_EFFECT = {
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
}
FIRST_VALUES = (True, False, "gaussian", "eva", "orthogonal")
"""The ways to begin that leave the base as it is."""


@dataclass(frozen=True)
class Options:
    """What of peft's options says something beside the tensors."""

    method: Lora
    root_scaling: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank(self, path: str) -> int:
        """The rank of one place's update."""
        return int(_of(self.ranks, path, self.method.rank))

    def scale(self, path: str) -> float:
        """The scale of one place's update: alpha / rank, or alpha / √rank (Kalajdzievski 2023)."""
        rank = self.rank(path)
        return float(_of(self.alphas, path, self.method.alpha)) / (math.sqrt(rank) if self.root_scaling else rank)

    def plain(self, targets: Sequence[str]) -> Lora:
        """The method that has the same scale in our terms, alpha / rank, on these targets."""
        alpha = self.method.alpha * (math.sqrt(self.method.rank) if self.root_scaling else 1.0)
        return self.method.replace(alpha=alpha, targets=tuple(targets))


def read_options(config: Mapping[str, Any], where: Path) -> Options:
    """Read peft's options; what would change the result and cannot be had here is a RunError that names it."""
    if config.get("peft_type") != "LORA":
        raise RunError(f"{where}: peft_type = {config.get('peft_type')!r}; only LORA can be read.")
    for name, value in config.items():
        if name not in READ | SAID_BY_THE_TENSORS | WITHOUT_EFFECT and value not in (None, False, {}, [], ""):
            raise RunError(f"{where}: {name} = {value!r} cannot be had here: only plain LoRA can be read.")
    if config.get("bias", "none") != "none":
        raise RunError(f"{where}: bias = {config['bias']!r}: trained biases cannot be read, only LoRA's matrices.")
    if (begin := config.get("init_lora_weights", True)) not in FIRST_VALUES:
        raise RunError(
            f"{where}: init_lora_weights = {begin!r} changes the base's own matrices. Convert it to plain LoRA with "
            "peft's save_pretrained(path_initial_model_for_weight_conversion=…)."
        )
    words = {"rank": config.get("r", 8), "alpha": config.get("lora_alpha", 8)}
    method = Lora.read({**words, "lora_dropout": config.get("lora_dropout", 0.0)}, str(where))
    patterns = [config.get(name) or {} for name in ("rank_pattern", "alpha_pattern")]
    return Options(method, bool(config.get("use_rslora")), *patterns)


def options_of(
    model: nn.Module, updates: Mapping[str, Update], whole: Collection[str], base: str | None
) -> dict[str, Any]:
    """Say in peft's options where updates stand and what they are."""
    paths = [path for path, _ in plain_modules(model)]
    rank, alpha = Counter((len(update.A), _alpha(update)) for update in updates.values()).most_common(1)[0][0]
    _refuse_ambiguous(whole, paths, updates)
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": max(update.dropout for update in updates.values()),
        "target_modules": _targets(list(updates), paths),
        "rank_pattern": {_exactly(at): len(one.A) for at, one in updates.items() if len(one.A) != rank},
        "alpha_pattern": {_exactly(at): _alpha(one) for at, one in updates.items() if _alpha(one) != alpha},
        "modules_to_save": sorted(whole) or None,
        "fan_in_fan_out": any(update.transposed for update in updates.values()),
        "bias": "none",
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }


def _alpha(update: Update) -> float:
    alpha = update.scale * len(update.A)
    return round(alpha) if math.isclose(alpha, round(alpha), rel_tol=1e-12) else alpha


def _targets(targets: list[str], paths: Collection[str]) -> list[str] | str:
    """The paths themselves; where one is another's ending, which peft would take for it, an expression instead."""
    ends = tuple(f".{path}" for path in targets)
    if any(path.endswith(ends) and path not in targets for path in paths):
        return "|".join(map(re.escape, targets))
    return targets


def _refuse_ambiguous(whole: Collection[str], paths: Collection[str], targets: Collection[str]) -> None:
    for name in whole:
        among = [path for path in paths if path != name and path.endswith(name)]
        hidden = [path for path in targets if re.match(rf"(^|.*\.){name}($|\..*)", path)]
        if among or hidden:
            raise SpecError(
                f"{name} learns as a whole, but peft's modules_to_save = ['{name}'] would take {(among + hidden)[0]} "
                "too: this cannot be written in its form."
            )


def _of(patterns: Mapping[str, Any], path: str, otherwise: Any) -> Any:
    """The first pattern that fits the end of a path, as peft matches them."""
    fitting = (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path))
    return next(fitting, otherwise)


def _exactly(path: str) -> str:
    return f"^{re.escape(path)}"
