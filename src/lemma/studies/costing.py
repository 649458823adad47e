"""Which study of costs a spec asks for."""

from pathlib import Path

from lemma.spec import CostSpec, HeadsStudy
from lemma.studies.costs import CostResult
from lemma.studies.heads import study_heads
from lemma.studies.length import study_length
from lemma.studies.measuring import device_named
from lemma.studies.memory import check_memory
from lemma.training import Observer, Silent


def run_cost(spec: CostSpec, out: Path, observer: Observer | None = None) -> CostResult:
    """Count and time what the spec asks for, save table and report in the folder `out`, and return all of it."""
    watcher = observer or Silent()
    check_memory(spec, device_named(spec.device))
    return study_heads(spec, out, watcher) if isinstance(spec, HeadsStudy) else study_length(spec, out, watcher)
