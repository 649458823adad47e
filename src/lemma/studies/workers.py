"""Cells of a study in other processes: on this machine, on a Ray cluster, or through Slurm.

All kinds of workers do the same: they open the study in its folder, which they must all see, and share its cells by
locks (`experiment.run_cells`). The call that started them watches the folder, and stops them by removing the job file.
"""

import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from _thread import interrupt_main
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from uuid import uuid4

import torch

from lemma.errors import InputError, SpecError, describe_unknown
from lemma.optional import import_optional
from lemma.processes import child_environment, python_command
from lemma.report.progress import SilentObserver
from lemma.runs.verify import STUDY_FILE
from lemma.spec.base import exists
from lemma.spec.studies import read_study
from lemma.studies.cells import StudyCell
from lemma.studies.experiment import (
    Experiment,
    TitledObserver,
    modified_ns,
    open_experiment,
    read_json,
    run_cells,
    write_json,
)

POLL_SECONDS = 0.5  # seconds between two looks at the folder
GRACE_SECONDS = 60.0  # seconds that workers have to write a checkpoint before they are ended
CLUSTERS = ("ray", "slurm")


def run_worker(job_file: str) -> None:
    """Run the cells of the study in whose folder the job file is, in this process, until all are done.

    A worker stops after the current step, and saves it, once the job file or the process that started it is gone, or
    when Slurm warns that its time is nearly over.
    """
    job = read_json(Path(job_file))
    if job is None:  # stopped before it began
        return
    os.chdir(job["folder"])
    torch.set_num_threads(job["threads"] or allocated_threads())
    done = threading.Event()

    def watch() -> None:
        """Interrupt the main thread once the job file or the parent process is gone."""
        while not done.wait(POLL_SECONDS):
            if not exists(Path(job_file)) or job["parent"] not in (None, os.getppid()):
                interrupt_main()  # not a signal from outside: Ray starts its workers with SIGINT blocked
                return

    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGUSR2"):  # not on Windows
        signal.signal(signal.SIGUSR2, lambda number, frame: interrupt_main())
    threading.Thread(target=watch, daemon=True).start()
    try:
        out = Path(job_file).parent
        experiment = open_experiment(read_study(out / STUDY_FILE), out, SilentObserver())
        experiment.failed_before, cells = job["failed"], experiment.cells()
        for stage in (experiment.trials(cells), cells):
            run_cells(experiment, stage, {})
    except KeyboardInterrupt:
        pass
    finally:
        done.set()


class Workers(ABC):
    """Base class of a group of workers, processes that run cells, which are started together."""

    @abstractmethod
    def start(self, job_file: Path, count: int, threads: int) -> None:
        """Start `count` workers, each of which calls `run_worker` on the job file and may use `threads` threads."""

    @abstractmethod
    def count_running(self) -> int:
        """Return how many workers are still running."""

    @abstractmethod
    def failure_message(self) -> str:
        """Return why a worker failed; "" if none did."""

    @abstractmethod
    def stop(self) -> None:
        """Kill the workers that are still running."""


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names in CUDA_VISIBLE_DEVICES."""
    count = torch.cuda.device_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(count)] if chosen is None else chosen.split(",")
    return [name.strip() for name in names[:count]]


def allocated_threads() -> int:
    """Return the number of threads for a worker on this machine: those allocated by Slurm or Ray, else all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for name in ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"):  # Ray sets the second
        if (allocated := os.environ.get(name, "")).isdigit() and int(allocated):
            return min(int(allocated), cores)
    return cores


class LocalWorkers(Workers):
    """Processes on this machine, in sessions of their own: Ctrl-C reaches the call that started them, and it alone."""

    def start(self, job_file: Path, count: int, threads: int) -> None:
        """Start `count` processes of the same Python; if there are several GPUs, each process sees one of them."""
        limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        command = python_command(
            "-c", "import sys; from lemma.studies.workers import run_worker; run_worker(sys.argv[1])"
        )
        gpus = visible_gpus()
        self.errors = [TemporaryFile() for _ in range(count)]  # noqa: SIM115
        self.processes = [
            subprocess.Popen(
                [*command, str(job_file)],
                env=child_environment(**limits, **({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {})),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            for number, errors in enumerate(self.errors)
        ]

    def count_running(self) -> int:
        """Return how many processes are still running."""
        return sum(process.poll() is None for process in self.processes)

    def failure_message(self) -> str:
        """Return status and last line of output of a process that failed; "" if none did."""
        for process, errors in zip(self.processes, self.errors, strict=True):
            if process.poll():
                errors.seek(0)
                lines = errors.read().decode(errors="replace").split("\n")
                last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
                return f"a worker ended with status {process.returncode}: {last}"
        return ""

    def stop(self) -> None:
        """Kill the processes that are still running."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


class RayWorkers(Workers):
    """Tasks of a Ray cluster: that of RAY_ADDRESS, or one on this machine for as long as the study takes."""

    def start(self, job_file: Path, count: int, threads: int) -> None:
        """Submit `count` tasks, which run the job file; if the cluster has GPUs, each gets one."""
        self.ray = import_optional("ray", "ray", "study --on ray")
        if not self.ray.is_initialized():
            self.ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
        gpus = 1 if self.ray.cluster_resources().get("GPU") else 0
        task = self.ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(run_worker)
        self.tasks = [task.remote(str(job_file)) for _ in range(count)]

    def count_running(self) -> int:
        """Return how many tasks are still running."""
        return len(self.ray.wait(self.tasks, num_returns=len(self.tasks), timeout=0)[1])

    def failure_message(self) -> str:
        """Return the error of a task that failed; "" if none did."""
        for task in self.ray.wait(self.tasks, num_returns=len(self.tasks), timeout=0)[0]:
            try:
                self.ray.get(task)
            except Exception as error:
                return f"a task of Ray failed: {error}"
        return ""

    def stop(self) -> None:
        """Cancel all tasks."""
        for task in self.tasks:
            self.ray.cancel(task, force=True)


class SlurmWorkers(Workers):
    """Jobs of Slurm, through submitit. Partition, account and time limit come from sbatch's own SBATCH_ variables."""

    cluster = "slurm"
    """Where submitit sends them; "local" runs them on this machine."""

    def start(self, job_file: Path, count: int, threads: int) -> None:
        """Submit `count` jobs, which run the job file; their logs are in the folder `slurm` of the study."""
        submitit = import_optional("submitit", "submitit", "study --on slurm")
        if self.cluster == "slurm" and not shutil.which("sbatch"):
            raise InputError("study --on slurm: there is no sbatch on this machine. Submit from a node of the cluster.")
        kinds = {"slurm": submitit.SlurmExecutor, "local": submitit.LocalExecutor}
        # the jobs start in the current folder, of which -P keeps them from importing
        executor = kinds[self.cluster](job_file.parent / "slurm", python=shlex.join(python_command()))
        if self.cluster == "slurm":  # without a time limit that of the partition applies, not submitit's five minutes
            executor.update_parameters(job_name="lemma-study", cpus_per_task=threads, time=None)
        self.jobs = [executor.submit(run_worker, str(job_file)) for _ in range(count)]

    def count_running(self) -> int:
        """Return how many jobs are not done."""
        return sum(not job.done() for job in self.jobs)

    def failure_message(self) -> str:
        """Return the error of a job that failed; "" if none did."""
        for job in self.jobs:
            if job.done() and (error := job.exception()):
                return f"job {job.job_id} of Slurm failed: {str(error).strip().splitlines()[-1]}"
        return ""

    def stop(self) -> None:
        """Cancel the jobs that are not done."""
        for job in self.jobs:
            if not job.done():
                job.cancel()


WORKERS: Mapping[str | None, type[Workers]] = {None: LocalWorkers, "ray": RayWorkers, "slurm": SlurmWorkers}


def run_workers(
    experiment: Experiment[Any],
    stages: Sequence[Sequence[StudyCell]],
    jobs: int | None,
    cluster: str | None,
) -> bool:
    """Run all cells in worker processes and watch them; return whether the user interrupted them by Ctrl-C.

    The threads of this machine are divided among the workers. A worker that dies leaves its cell to the others.

    `stages` are run one after the other, by `jobs` workers or, if None, as many as are useful. `cluster` is "ray",
    "slurm" or None for this machine.
    """
    if cluster not in WORKERS:
        raise SpecError(describe_unknown("study --on: value", str(cluster), CLUSTERS))
    cells = [cell for stage in stages for cell in stage]
    cores, max_workers = torch.get_num_threads(), max(map(len, stages))
    # Ray and Slurm queue what does not fit; the cores of the submitting machine say nothing about theirs.
    count = min(jobs or (cores if cluster is None else max_workers), max_workers)
    if count < 1:
        return False
    threads = max(1, cores // count) if cluster is None else 1
    job_file = experiment.out.resolve() / f".workers-{uuid4().hex}.json"
    job = {
        "failed": dict(experiment.failed_before),
        "folder": str(Path.cwd()),
        "threads": threads if cluster is None else None,
        "parent": os.getpid() if cluster is None else None,
    }
    write_json(job_file, job)
    workers, observer = WORKERS[cluster](), experiment.observer
    processes = f"{count} process{'es' if count > 1 else ''}" + (f" on {cluster}" if cluster else "")
    pending = {cell.name: cell for cell in cells}
    interrupted = False
    try:
        workers.start(job_file, count, threads)
    except BaseException:
        job_file.unlink()
        raise
    try:
        observer.start(f"{len(cells)} runs in {processes}", len(cells), "runs")
        _watch(experiment, workers, pending)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        observer.finish()
        job_file.unlink(missing_ok=True)
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            while workers.count_running() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS / 5)
        except KeyboardInterrupt:  # a second Ctrl-C does not wait for checkpoints
            interrupted = True
        workers.stop()
    for cell in pending.values():
        if not interrupted and not experiment.final_outcome(cell):
            reason = workers.failure_message() or "its worker ended early"
            experiment.record_failure(cell, reason, TitledObserver(observer, str(cell)))
    return interrupted


def _watch(experiment: Experiment[Any], workers: Workers, pending: dict[str, StudyCell]) -> None:
    """Log each cell that finishes and remove it from `pending`, by cell name, until none is left or no worker runs."""
    total, modified = len(pending), dict[str, int]()
    while pending:
        running = workers.count_running()  # asked first: what they did before they ended is seen below
        for cell in list(pending.values()):
            time_ns = modified_ns(experiment.measures_path(cell))  # reading all files each time would take a while
            if time_ns == modified.get(cell.name):
                continue
            modified[cell.name] = time_ns
            if outcome := experiment.final_outcome(cell):
                del pending[cell.name]
                perplexity = getattr(outcome.measures, "perplexity", None)
                message = f"perplexity {perplexity:.3f}" if perplexity else "done"
                if outcome.reason:
                    message = f"failed: {outcome.reason}"
                experiment.observer.log(f"{'trial of ' if cell.is_trial else ''}{cell}: {message}")
        experiment.observer.advance(total - len(pending))
        if not running:
            return
        time.sleep(POLL_SECONDS)
