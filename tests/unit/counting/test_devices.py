"""Names of devices are read as drivers, clouds and people write them, and never as another chip's."""

import re

import pytest

from lemma.counting.devices import DEVICES, PCIE5, get_device, read_speed
from lemma.errors import InputError

NAMES = {
    "NVIDIA GB300": "GB300",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA B300": "B300",
    "b300 288GB": "B300",
    "NVIDIA GB200": "GB200",
    "NVIDIA B200": "B200",
    "nvidia-b200": "B200",
    "B200 SXM 180GB": "B200",
    "NVIDIA GH200 480GB": "GH200",
    "GH200 96GB HBM3": "GH200",
    "NVIDIA H200": "H200",
    "nvidia-h200-141gb": "H200",
    "H200 SXM": "H200",
    "NVIDIA H200 NVL": "H200-NVL",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA-H100-80GB-HBM3": "H100",
    "NVIDIA H100 SXM5 80GB": "H100",
    "H100-SXM5-80GB": "H100",
    "H100 SXM": "H100",
    "nvidia-h100-80gb": "H100",
    "nvidia-h100-mega-80gb": "H100",
    "1xH100": "H100",
    "1x H100 (80 GB SXM5)": "H100",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "H100 PCIe": "H100-PCIe",
    "H100 80GB PCIE": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL",
    "H100 NVL 94GB": "H100-NVL",
    "NVIDIA H800": "H800",
    "NVIDIA H800 PCIe": "H800-PCIe",
    "NVIDIA H20": "H20",
    "H20 96GB": "H20",
    "NVIDIA H20-3e": "H20-3e",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA-A100-SXM4-80GB": "A100-80GB",
    "A100 SXM 80GB": "A100-80GB",
    "A100-80G": "A100-80GB",
    "nvidia-a100-80gb": "A100-80GB",
    "a100_80gb": "A100-80GB",
    "NVIDIA A100 80GB PCIe": "A100-80GB-PCIe",
    "A100-PCIE-80GB": "A100-80GB-PCIe",
    "NVIDIA A100-SXM4-40GB": "A100-40GB",
    "1x A100 (40 GB SXM4)": "A100-40GB",
    "NVIDIA A100-PCIE-40GB": "A100-40GB-PCIe",
    "NVIDIA A800-SXM4-80GB": "A800",
    "NVIDIA A800 80GB PCIe": "A800-PCIe",
    "NVIDIA L40S": "L40S",
    "l40s": "L40S",
    "L40S 48GB": "L40S",
    "NVIDIA L40": "L40",
    "L40": "L40",
    "NVIDIA L20": "L20",
    "NVIDIA L4": "L4",
    "nvidia-l4": "L4",
    "NVIDIA A40": "A40",
    "NVIDIA A30": "A30",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "nvidia-a10g": "A10G",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000",
    "NVIDIA RTX PRO 6000 Blackwell": "RTX-PRO-6000",
    "RTX PRO 6000": "RTX-PRO-6000",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-Server",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX-PRO-6000-Max-Q",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada",
    "RTX 6000 Ada": "RTX-6000-Ada",
    "NVIDIA RTX 5000 Ada Generation": "RTX-5000-Ada",
    "NVIDIA RTX A6000": "RTX-A6000",
    "A6000": "RTX-A6000",
    "NVIDIA RTX A5000": "RTX-A5000",
    "NVIDIA RTX A4000": "RTX-A4000",
    "NVIDIA GeForce RTX 5090": "RTX-5090",
    "NVIDIA GeForce RTX 5080": "RTX-5080",
    "NVIDIA GeForce RTX 5070 Ti": "RTX-5070-Ti",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "4090": "RTX-4090",
    "rtx4090": "RTX-4090",
    "NVIDIA GeForce RTX 4080 SUPER": "RTX-4080-SUPER",
    "NVIDIA GeForce RTX 4080": "RTX-4080",
    "NVIDIA GeForce RTX 4070 Ti SUPER": "RTX-4070-Ti-SUPER",
    "NVIDIA GeForce RTX 4070 Ti": "RTX-4070-Ti",
    "RTX 4070Ti": "RTX-4070-Ti",
    "NVIDIA GeForce RTX 4070 SUPER": "RTX-4070-SUPER",
    "NVIDIA GeForce RTX 4070": "RTX-4070",
    "NVIDIA GeForce RTX 3090 Ti": "RTX-3090-Ti",
    "GeForce RTX 3090": "RTX-3090",
    "rtx3090": "RTX-3090",
    "NVIDIA GeForce RTX 3080 Ti": "RTX-3080-Ti",
    "NVIDIA GeForce RTX 3080": "RTX-3080",
    "NVIDIA GeForce RTX 3070": "RTX-3070",
    "NVIDIA GeForce RTX 3060": "RTX-3060",
    "NVIDIA GeForce RTX 2080 Ti": "RTX-2080-Ti",
    "Quadro RTX 8000": "Quadro-RTX-8000",
    "Quadro RTX 6000": "Quadro-RTX-6000",
    "NVIDIA TITAN RTX": "TITAN-RTX",
    "Tesla V100-SXM2-32GB": "V100-32GB",
    "Tesla V100-SXM3-32GB": "V100-32GB",
    "Tesla V100-DGXS-32GB": "V100-32GB",
    "Tesla V100-SXM2-16GB": "V100-16GB",
    "Tesla V100-PCIE-16GB": "V100-16GB-PCIe",
    "Tesla V100-PCIE-32GB": "V100-32GB-PCIe",
    "Tesla V100S-PCIE-32GB": "V100S",
    "Tesla P100-PCIE-16GB": "P100",
    "nvidia-tesla-p100": "P100",
    "Tesla P100-SXM2-16GB": "P100-SXM",
    "Tesla P40": "P40",
    "Tesla T4": "T4",
    "nvidia-tesla-t4": "T4",
    "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X OAM": "MI300X",
    "MI300X 192GB": "MI300X",
    "AMD Instinct MI325X": "MI325X",
    "AMD Instinct MI355X": "MI355X",
    "AMD Instinct MI210": "MI210",
}


@pytest.mark.parametrize(("name", "row"), [*NAMES.items(), *((row.name, row.name) for row in DEVICES.values())])
def test_device_names_are_read_as_written(name: str, row: str) -> None:
    device = get_device(name)
    assert device == DEVICES[row.lower()]


def test_ambiguous_name_means_the_first_row_with_a_note() -> None:
    device = get_device("A100")
    assert device.name == "A100-80GB" and "gpu=A100-40GB" in device.note
    assert get_device("V100").name == "V100-32GB" and "gpu=V100-16GB" in get_device("V100").note
    assert get_device("V100 PCIe").name == "V100-32GB-PCIe" and "gpu=V100-16GB-PCIe" in get_device("V100 PCIe").note
    assert "two chips" in get_device("AMD Instinct MI250X").note


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "A laptop's GPU is another chip"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "Similar: RTX-4090."),
        ("NVIDIA GeForce RTX 4090 D", "Similar: RTX-4090."),
        ("NVIDIA GeForce RTX 2080 Super with Max-Q Design", "A laptop's GPU is another chip"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "a slice of a GPU. Similar: A100-80GB, A100-80GB-PCIe, A100-40GB,"),
        ("GRID A100-40C", "a share of a GPU for a virtual machine"),
        ("NVIDIA A10-24Q", "a share of a GPU for a virtual machine"),
        ("A100 64GB", "Similar: A100-80GB"),
        ("RTX 6000", "Similar: RTX-PRO-6000, RTX-PRO-6000-Server, RTX-PRO-6000-Max-Q, RTX-6000-Ada, Quadro-RTX-6000"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "unknown gpu"),
        ("A1000", "unknown gpu 'A1000'. Choices: GB300"),
        ("Apple M3 Max", "no Apple chips"),
        ("mps", "no Apple chips"),
        ("TPU v5e", "on GPUs and CPUs only"),
        ("v4-8", "on GPUs and CPUs only"),
        ("Intel Gaudi 3", "on GPUs and CPUs only"),
        ("8xH100", "Say gpu=H100 devices=8"),
        ("8 x A100-80GB", "Say gpu=A100-80GB devices=8"),
        ("", "unknown gpu ''. Choices: GB300"),
        ("H300", "memory=80e9 flops=312e12 bandwidth=2e12"),
    ],
)
def test_unknown_device_is_never_matched_to_another(name: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        get_device(name)


def test_rates_are_dense_and_cables_one_directional() -> None:
    for device in DEVICES.values():
        assert device.memory > 0 and device.bandwidth and device.link and device.network, device.name
        rates = device.flops
        if rates.keys() == {"bfloat16", "float32"} and device.name not in ("MI355X", "MI250X", "MI210"):
            # those three have no TF32
            assert rates["bfloat16"] / rates["float32"] == pytest.approx(2, rel=0.03), device.name
        assert 0.85 < device.memory / (max(device.advertised_gb[0], 1) * 1e9) < 1.075, device.name  # GB or GiB
    sheets = {  # NVLink's bytes per second as sold, which are the sum of both directions
        "GB200": 1800e9, "B300": 1800e9, "H100": 900e9, "H20": 900e9, "H800": 400e9, "A100-80GB": 600e9, "A800": 400e9,
    }  # fmt: skip
    assert {name: 2 * (get_device(name).link or 0) for name in sheets} == sheets
    assert get_device("H100 PCIe").link == PCIE5 * 1e9 and get_device("GB200").node == 72


# CUDA cores and boost clock in GHz; a core does a multiply–add in a cycle, and TF32's matrix units are as fast as these
GEFORCE = {
    "RTX-5090": (21760, 2.41), "RTX-5080": (10752, 2.62), "RTX-5070-Ti": (8960, 2.45), "RTX-4090": (16384, 2.52),
    "RTX-4080-SUPER": (10240, 2.55), "RTX-4080": (9728, 2.505), "RTX-4070-Ti-SUPER": (8448, 2.61),
    "RTX-4070-Ti": (7680, 2.61), "RTX-4070-SUPER": (7168, 2.475), "RTX-4070": (5888, 2.475),
    "RTX-3090-Ti": (10752, 1.86), "RTX-3090": (10496, 1.695), "RTX-3080-Ti": (10240, 1.665), "RTX-3080": (8704, 1.71),
    "RTX-3070": (5888, 1.725), "RTX-3060": (3584, 1.777), "RTX-2080-Ti": (4352, 1.545),
}  # fmt: skip


@pytest.mark.parametrize("name", GEFORCE)
def test_geforce_rates_follow_from_cores_and_clock(name: str) -> None:
    cores, clock = GEFORCE[name]
    assert DEVICES[name.lower()].flops["float32"] == pytest.approx(2 * cores * clock * 1e9, rel=0.005)


def test_speeds_are_read_with_units() -> None:
    device = get_device("A100-80GB")
    for text, speed in {
        "NVLink": 300e9, "nvlink4": 450e9, "PCIe5": 64e9, "50GB/s": 50e9, "400Gb/s": 50e9, "400 Gbps": 50e9,
        "200Gbit/s": 25e9, "100G": 12.5e9, 25e9: 25e9, 450000000000: 450e9, "1.5e9": 1.5e9,
    }.items():  # fmt: skip
        assert read_speed("link", text, device) == speed
    written = get_device(None, memory="80GB", flops="312T", bandwidth="2TB/s")
    assert written == get_device(None, memory=80e9, flops=312e12, bandwidth=2e12)
    for wrong in ("80 apples", "-3GB", 0, True, float("nan")):
        with pytest.raises(InputError, match="memory=80GB"):
            get_device(None, memory=wrong)
    custom = get_device("T4", link="NVLink3", network="200Gb/s", node=4)
    assert (custom.link, custom.network, custom.node) == (300e9, 25e9, 4)
    for wrong in ("fast", "-3", 0, 400, True, "50 MB", float("nan"), float("inf"), "nvlink9"):
        with pytest.raises(InputError, match=r"link = .* bytes per second"):
            read_speed("link", wrong, device)
    with pytest.raises(InputError, match="nvlink4"):
        get_device("T4", link="nvlink")  # it has none
    for wrong in (0, -1, 2.5, True):
        with pytest.raises(InputError, match="node=8"):
            get_device("T4", node=wrong)  # pyright: ignore[reportArgumentType]
