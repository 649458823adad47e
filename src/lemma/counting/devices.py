"""Devices: what data sheets say of GPUs, and which GPU a name means, as drivers, clouds and people write it."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from lemma.errors import InputError
from lemma.report.numbers import unit_factor
from lemma.spec.base import short_repr

GIB = 2**30
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Device:
    """A GPU or a CPU, and the cables between several of them.

    `flops` are FLOPs per second by precision, of dense matrix products in the makers' data sheets; those of float32 are
    TF32's where there are any, which the trainer allows on a GPU. `link` and `network` are bytes per second that a
    device can send while it receives as much: the half of the sum of both directions that NVLink is sold by.
    """

    name: str
    memory: float  # bytes that PyTorch sees
    bandwidth: float | None  # bytes per second
    flops: Mapping[str, float]
    workspace: int = 16 * 2**20  # bytes that cuBLAS takes for itself, in the forward and in the backward thread
    gpu: bool = True
    advertised_gb: tuple[int, ...] = ()  # memory in GB as its makers and drivers print it
    link: float | None = None  # to the other devices of its node
    network: float | None = None  # to other nodes, of each device
    node: int = 8  # devices that `link` connects
    note: str = ""  # which other device a name may mean


def _describe_gpu(
    name: str,
    gb: int,
    gib: float,
    terabytes: float,
    bfloat16: float,
    tf32: float,
    link: float,
    network: float = 6.25,
    *more_gb: int,
    workspace: int = 2**24,
    node: int = 8,
) -> Device:
    """Describe a GPU by its memory (in GB as sold, in GiB as PyTorch reports it), bandwidth in TB/s and TFLOPs/s.

    `link` and `network` are in GB/s and one direction. A rate of 0 stands for a precision that it lacks; `more_gb` are
    other sizes in GB under which it is sold. The network is the one of the makers' own 8-GPU machines; PCIe cards are
    counted with a common one: 400 Gb/s for eight of them.
    """
    rates = {"bfloat16": bfloat16 * 1e12, "float32": tf32 * 1e12}
    flops = {precision: rate for precision, rate in rates.items() if rate}
    numbers = gib * GIB, terabytes * 1e12, flops, workspace, True, (gb, *more_gb), link * 1e9, network * 1e9, node
    return Device(name, *numbers)


HOPPER = 64 * 2**20
PCIE3, PCIE4, PCIE5 = 16, 32, 64  # GB/s of 16 lanes in one direction
LINKS = {"nvlink2": 150, "nvlink3": 300, "nvlink4": 450, "nvlink5": 900, "pcie3": 16, "pcie4": 32, "pcie5": 64}  # GB/s
TWO_CHIPS = "PyTorch sees each of the two chips of an MI250X as a device; the figures are those of one."

DEVICES = {
    device.name.lower(): device
    for device in (  # of names that fit several rows, the first is taken
        _describe_gpu("GB300", 288, 268.6, 8.0, 2500, 1250, 900, 100, 278, 279, workspace=HOPPER, node=72),
        _describe_gpu("B300", 288, 268.6, 8.0, 2250, 1125, 900, 100, 270, 275, workspace=HOPPER),
        _describe_gpu("GB200", 186, 184.0, 8.0, 2500, 1250, 900, 50, 192, 189, workspace=HOPPER, node=72),
        _describe_gpu("B200", 180, 178.4, 7.7, 2250, 1125, 900, 50, 192, workspace=HOPPER),
        # drivers print the 480 GB of its CPU
        _describe_gpu("GH200", 96, 94.5, 4.0, 989, 495, 450, 50, 480, workspace=HOPPER),
        _describe_gpu("H200", 141, 139.8, 4.8, 989, 495, 450, 50, workspace=HOPPER),
        _describe_gpu("H200-NVL", 141, 139.8, 4.8, 835, 418, 450, 50, workspace=HOPPER, node=4),
        _describe_gpu("H100", 80, 79.2, 3.35, 989, 495, 450, 50, workspace=HOPPER),
        _describe_gpu("H100-PCIe", 80, 79.2, 2.0, 756, 378, PCIE5, workspace=HOPPER),
        _describe_gpu("H100-NVL", 94, 93.1, 3.9, 835, 418, 300, 25, workspace=HOPPER, node=2),
        _describe_gpu("H800", 80, 79.2, 3.35, 989, 495, 200, 50, workspace=HOPPER),
        _describe_gpu("H800-PCIe", 80, 79.2, 2.0, 756, 378, PCIE5, workspace=HOPPER),
        _describe_gpu("H20", 96, 95.1, 4.0, 148, 74, 450, 50, workspace=HOPPER),
        _describe_gpu("H20-3e", 141, 139.8, 4.8, 148, 74, 450, 50, workspace=HOPPER),
        _describe_gpu("A100-80GB", 80, 79.2, 2.04, 312, 156, 300, 25),
        _describe_gpu("A100-80GB-PCIe", 80, 79.2, 1.94, 312, 156, PCIE4),
        _describe_gpu("A100-40GB", 40, 39.4, 1.56, 312, 156, 300, 25),
        _describe_gpu("A100-40GB-PCIe", 40, 39.4, 1.56, 312, 156, PCIE4),
        _describe_gpu("A800", 80, 79.2, 2.04, 312, 156, 200, 25),
        _describe_gpu("A800-PCIe", 80, 79.2, 1.94, 312, 156, PCIE4),
        _describe_gpu("L40S", 48, 44.4, 0.864, 362, 183, PCIE4),
        _describe_gpu("L40", 48, 44.4, 0.864, 181, 90.5, PCIE4),
        _describe_gpu("L20", 48, 44.4, 0.864, 119.5, 59.8, PCIE4),
        _describe_gpu("L4", 24, 22.0, 0.3, 121, 60, PCIE4),
        _describe_gpu("A40", 48, 44.4, 0.696, 150, 74.8, PCIE4),
        _describe_gpu("A30", 24, 23.5, 0.933, 165, 82, PCIE4),
        _describe_gpu("A10", 24, 22.0, 0.6, 125, 62.5, PCIE4),
        _describe_gpu("A10G", 24, 22.0, 0.6, 70, 35, PCIE4),
        _describe_gpu("RTX-PRO-6000", 96, 94.9, 1.79, 500, 250, PCIE5),
        _describe_gpu("RTX-PRO-6000-Server", 96, 94.9, 1.6, 500, 250, PCIE5),
        _describe_gpu("RTX-PRO-6000-Max-Q", 96, 94.9, 1.79, 439, 219, PCIE5),
        _describe_gpu("RTX-6000-Ada", 48, 47.4, 0.96, 364, 182, PCIE4),
        _describe_gpu("RTX-5000-Ada", 32, 31.5, 0.576, 261, 130.6, PCIE4),
        _describe_gpu("RTX-A6000", 48, 47.5, 0.768, 155, 77.4, PCIE4),
        _describe_gpu("RTX-A5000", 24, 23.6, 0.768, 111, 55.6, PCIE4),
        _describe_gpu("RTX-A4000", 16, 15.7, 0.448, 76.7, 38.3, PCIE4),
        _describe_gpu("RTX-5090", 32, 31.3, 1.79, 209, 105, PCIE5),
        _describe_gpu("RTX-5080", 16, 15.5, 0.96, 113, 56.3, PCIE5),
        _describe_gpu("RTX-5070-Ti", 16, 15.5, 0.896, 87.9, 43.9, PCIE5),
        _describe_gpu("RTX-4090", 24, 23.6, 1.01, 165, 82.6, PCIE4),
        _describe_gpu("RTX-4080-SUPER", 16, 15.6, 0.736, 104, 52.2, PCIE4),
        _describe_gpu("RTX-4080", 16, 15.6, 0.717, 97.5, 48.7, PCIE4),
        _describe_gpu("RTX-4070-Ti-SUPER", 16, 15.6, 0.672, 88.2, 44.1, PCIE4),
        _describe_gpu("RTX-4070-Ti", 12, 11.6, 0.504, 80.2, 40.1, PCIE4),
        _describe_gpu("RTX-4070-SUPER", 12, 11.6, 0.504, 71, 35.5, PCIE4),
        _describe_gpu("RTX-4070", 12, 11.6, 0.504, 58.3, 29.1, PCIE4),
        _describe_gpu("RTX-3090-Ti", 24, 23.6, 1.01, 80, 40, PCIE4),
        _describe_gpu("RTX-3090", 24, 23.6, 0.936, 71, 35.6, PCIE4),
        _describe_gpu("RTX-3080-Ti", 12, 11.6, 0.912, 68.2, 34.1, PCIE4),
        _describe_gpu("RTX-3080", 10, 9.6, 0.76, 59.5, 29.8, PCIE4),
        _describe_gpu("RTX-3070", 8, 7.6, 0.448, 40.6, 20.3, PCIE4),
        _describe_gpu("RTX-3060", 12, 11.6, 0.36, 25.5, 12.7, PCIE4),
        _describe_gpu("RTX-2080-Ti", 11, 10.6, 0.616, 0, 13.4, PCIE3),
        _describe_gpu("Quadro-RTX-8000", 48, 47.2, 0.672, 0, 16.3, PCIE3),
        _describe_gpu("Quadro-RTX-6000", 24, 23.5, 0.672, 0, 16.3, PCIE3),
        _describe_gpu("TITAN-RTX", 24, 23.5, 0.672, 0, 16.3, PCIE3),
        _describe_gpu("V100-32GB", 32, 31.7, 0.9, 0, 15.7, 150),
        _describe_gpu("V100-16GB", 16, 15.8, 0.9, 0, 15.7, 150),
        _describe_gpu("V100-32GB-PCIe", 32, 31.7, 0.9, 0, 14.0, PCIE3),
        _describe_gpu("V100-16GB-PCIe", 16, 15.8, 0.9, 0, 14.0, PCIE3),
        _describe_gpu("V100S", 32, 31.7, 1.134, 0, 16.4, PCIE3),
        _describe_gpu("P100", 16, 15.9, 0.732, 0, 9.3, PCIE3),
        _describe_gpu("P100-SXM", 16, 15.9, 0.732, 0, 10.6, 80),
        _describe_gpu("P40", 24, 22.4, 0.346, 0, 11.8, PCIE3),
        _describe_gpu("T4", 16, 14.6, 0.32, 0, 8.1, PCIE3),
        _describe_gpu("MI355X", 288, 287.0, 8.0, 2517, 157, 537, 50, workspace=HOPPER),
        _describe_gpu("MI325X", 256, 255.0, 6.0, 1307, 654, 448, 50, workspace=HOPPER),
        _describe_gpu("MI300X", 192, 191.5, 5.3, 1307, 654, 448, 50, workspace=HOPPER),
        replace(_describe_gpu("MI250X", 64, 63.98, 1.64, 191.5, 47.9, 50, 12.5), note=TWO_CHIPS),
        _describe_gpu("MI210", 64, 63.98, 1.64, 181, 45.3, PCIE4),
    )
}
OPTIONAL_WORDS = re.compile(
    r"nvidia|geforce|tesla|quadro|amd|instinct|rtx|gpu|graphics|generation|tensor|core|sxm|hbm\d?e?|pcie|ada|oam|ac|dgxs"
    r"|blackwell|workstation|edition|mega|\d+gb"
)
"""Words of a device's name that need not be said: brand, form factor, memory."""
REQUIRED_WORDS = frozenset(("pcie", "nvl", "ada", "quadro", "sxm"))
"""Optional words that must be said where a row's name has them: the same chip or number has other rows without them."""
OTHER_CHIPS = {  # what names say that no row describes, and why
    r"laptop|mobile|max-?q": "A laptop's GPU is another chip than the desktop card of its number, with less memory.",
    r"\bmig\b|\d+g\.\d+gb": "That is a slice of a GPU.",
    r"\bgrid\b|-\d+[qc]\b": "That is a share of a GPU for a virtual machine.",
    r"\bapple\b|\bm[1-5]\b|\bmps\b": "Lemma's plans know no Apple chips: their memory is shared with the CPU.",
    r"\btpu\b|\bv[2-6][ep]?-\d+|trainium|inferentia|gaudi": "Lemma trains with PyTorch on GPUs and CPUs only.",
}


def split_device_name(name: str) -> frozenset[str]:
    """Split a device name into lower-case words: `NVIDIA A100-SXM4-80GB` into nvidia, a100, sxm4 and 80gb."""
    normalized = re.sub(r"(\d) ?gi?b?\b", r"\1gb", name.lower().replace("_", " "))
    normalized = re.sub(r"\b(rtx|geforce|tesla)(?=[a-z0-9])|\b(sxm)\d", r"\1\2 ", normalized)
    return frozenset(re.findall(r"[a-z0-9]+", re.sub(r"(?<=\d)(ti|super)\b", r" \1", normalized)))


def match_device(name: str) -> Device | None:
    """Return the device in the table that is meant by `name`, as a driver or a user writes it, else None.

    All words of the table's name must occur in `name` except optional ones, and no others: a laptop's GPU is another
    one, and so is one of another memory. The entry with the most words wins; if several match, the first, with a note.

    >>> [device.name for name in ("NVIDIA A100-SXM4-80GB", "Tesla T4", "4090") if (device := match_device(name))]
    ['A100-80GB', 'T4', 'RTX-4090']
    """
    words, matches = split_device_name(name), []
    for device in DEVICES.values():
        needed = _required_words(device)
        extra_words = {word for word in words - split_device_name(device.name) if not OPTIONAL_WORDS.fullmatch(word)}
        sizes = {int(word[:-2]) for word in words if re.fullmatch(r"\d+gb", word)}
        if needed <= words and not extra_words and sizes <= {*device.advertised_gb}:
            matches.append((len(needed), device))
    if not matches:
        return None
    best, device = max(matches, key=lambda match: match[0])
    alternatives = [
        other.name
        for needed, other in matches
        if other is not device and (needed == best or other.advertised_gb != device.advertised_gb)
    ]
    if not alternatives or words == split_device_name(device.name):
        return device
    return replace(device, note=f"{name} is read as {device.name}. Otherwise say gpu={' or gpu='.join(alternatives)}.")


def _required_words(device: Device) -> set[str]:
    """Return the words of a device's name that must occur in a name that matches it."""
    return {
        word for word in split_device_name(device.name) if word in REQUIRED_WORDS or not OPTIONAL_WORDS.fullmatch(word)
    }


def get_device(
    gpu: str | None,
    memory: float | str | None = None,
    flops: float | str | None = None,
    bandwidth: float | str | None = None,
    link: float | str | None = None,
    network: float | str | None = None,
    node: int | None = None,
) -> Device:
    """Return a device by its name, or one with custom numbers; custom numbers replace those of the named device.

    Memory is in bytes; FLOPs and bandwidth are per second; units as in 80GB or 2TB/s work, too. `link` and `network`
    are speeds as `read_speed` takes them.

    >>> get_device("h200").bandwidth, get_device(None, memory=80e9).memory
    (4800000000000.0, 80000000000.0)
    """
    memory, flops, bandwidth = (
        None if value is None else _read_amount(name, value)
        for name, value in (("memory", memory), ("flops", flops), ("bandwidth", bandwidth))
    )
    if node is not None and (not isinstance(node, int) or isinstance(node, bool) or node < 1):
        raise InputError(f"node = {node!r}: how many devices share a node is expected, as in node=8.")
    device = _find_device(gpu, memory)
    return replace(
        device,
        memory=memory or device.memory,
        bandwidth=bandwidth or device.bandwidth,
        flops=dict.fromkeys(PRECISIONS, flops) if flops else device.flops,
        link=device.link if link is None else read_speed("link", link, device),
        network=device.network if network is None else read_speed("network", network, device),
        node=node or device.node,
    )


def _read_amount(name: str, value: float | str) -> float:
    """Return an amount that a person wrote as a number, or with a unit: 80e9, 80GB, 24GiB, 312T, 2TB/s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)(/s)?", value.strip()) if isinstance(value, str) else None
    factor = unit_factor(match[2]) if match else None
    amount = float(match[1]) * factor if match and factor else value
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < float("inf"):
        example = {"memory": "80GB", "flops": "312T", "bandwidth": "2TB/s"}[name]
        raise InputError(f"{name} = {value!r}: a number above 0 is expected, as in {name}={example}.")
    return amount


MIN_SPEED = 1e6  # bytes per second; less is a number whose unit was forgotten, such as 400 of 400Gb/s


def read_speed(name: str, value: float | str, device: Device) -> float:
    """Return the bytes per second and direction that a speed means: a number, `400Gb/s`, `50GB/s`, or `nvlink4`.

    The speed of plain `nvlink` is that of the device.

    >>> h100 = DEVICES["h100"]
    >>> [read_speed("link", text, h100) / 1e9 for text in ("NVLink", "pcie4", "450 GB/s", "400Gb/s", 50e9)]
    [450.0, 32.0, 450.0, 50.0, 50.0]
    """
    text = str(value).strip().replace(" ", "")
    if text.lower() in LINKS:
        return LINKS[text.lower()] * 1e9
    if text.lower() == "nvlink" and device.link and device.link > PCIE5 * 1e9:
        return device.link
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\d+)?)(GB/s|GBps|Gb/s|Gbps|Gbit/s|G)?", text)
    speed = float(match[1]) * {"GB": 1e9, "": 1}.get((match[2] or "")[:2], 1e9 / 8) if match else 0
    if not MIN_SPEED <= speed < float("inf") or isinstance(value, bool):
        raise InputError(
            f"{name} = {value!r}: bytes per second of each device in one direction are expected, as in {name}=50e9, "
            f"{name}=50GB/s, {name}=400Gb/s, or one of {', '.join(LINKS)}."
        )
    return speed


def _find_device(gpu: str | None, memory: float | None) -> Device:
    """Return a device by its name; without one, the GPU here or else an H100, and with only a `memory` no figures."""
    if gpu is None and memory is not None:
        return Device("own device", memory, None, {})
    if str(gpu).lower() == "cpu":
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        return Device("cpu", total, None, {}, 0, gpu=False)
    if gpu is None and torch.cuda.is_available():
        seen = torch.cuda.get_device_properties(0)
        row = match_device(seen.name) or Device(seen.name, 0, None, {})
        return replace(row, name=seen.name, memory=seen.total_memory, note="")
    name = "H100" if gpu is None else str(gpu).strip()
    prefix = re.match(r"(\d+) ?[x×*] ?(?=[a-z])", name, re.IGNORECASE)
    if prefix and int(prefix[1]) > 1:
        single = name[prefix.end() :]
        raise InputError(
            f"gpu = {short_repr(name)} means {prefix[1]} devices. Say gpu={single} devices={prefix[1]}, or how "
            "to split them: data=… shards=… tensor=… pipeline=…."
        )
    matched = match_device(name[prefix.end() :] if prefix else name)
    if matched is None:
        raise InputError(_describe_unknown_device(name))
    return matched


def _describe_unknown_device(name: str) -> str:
    """Return the message for a name that no row of the table matches: why, similar rows, and what to type."""
    reasons = [reason for pattern, reason in OTHER_CHIPS.items() if re.search(pattern, name.lower())]
    words = split_device_name(name)
    similar = [row.name for row in DEVICES.values() if (_required_words(row) - REQUIRED_WORDS) & words]
    hints = reasons[:1] + ([f"Similar: {', '.join(similar)}."] if similar else [])
    names = ", ".join(row.name for row in DEVICES.values())
    return (
        f"unknown gpu {short_repr(name)}.{' '.join(['', *hints])} Choices: {names}, cpu. "
        "Or give numbers of your own: memory=80e9 flops=312e12 bandwidth=2e12 (bytes; per second)."
    )
