"""What a study ran on, in words."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def describe_hardware(device: str = "cpu") -> dict[str, str]:
    """Name the machine, the threads and the versions that figures of speed depend on."""
    gpu = {"GPU": torch.cuda.get_device_name()} if device == "cuda" else {}
    threads = torch.get_num_threads()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, Lemma {lemma_version()}"
    return {
        **gpu,
        "processor": f"{_processor()}, {threads} thread{'' if threads == 1 else 's'}",
        "system": f"{platform.system()} {platform.machine()}, {versions}",
    }


def lemma_version() -> str:
    """The version of Lemma, if it is installed as a package."""
    try:
        return version("lemma")
    except PackageNotFoundError:
        return "not installed as a package"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
