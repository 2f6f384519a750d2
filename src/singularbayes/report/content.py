"""What a report holds: plain frozen data, checked when it is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from singularbayes.diagnosis import Diagnosis
from singularbayes.evaluation import Evaluation


@dataclass(frozen=True, kw_only=True, eq=False)
class Panel:
    """A figure with its title and one sentence on how to read it.

    Args:
        title: what is shown.
        caption: how to read it.
        figure: a matplotlib figure.
        alt: the text for readers who cannot see the figure; the caption where empty.
    """

    title: str
    caption: str
    figure: Figure
    alt: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One method of the report.

    Args:
        name: as printed; anything goes, it is escaped.
        evaluations: one for each seed, at least one, all of the same task.
        diagnosis: the criteria A, B, C of the FIRST evaluation, or None where not measured.
        numbers: trained numbers.
        seconds: training time of one seed, in seconds; nan where not measured.

    Raises:
        ValueError: no evaluation, evaluations of different tasks, or an empty name.
    """

    name: str
    evaluations: tuple[Evaluation, ...]
    diagnosis: Diagnosis | None
    numbers: int
    seconds: float

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError(
                "got an entry with an empty name; expected a name: the tables cannot tell it apart"
            )
        if not self.evaluations:
            raise ValueError(
                f"got no evaluation for {self.name!r}; expected at least one: run sb.evaluate first"
            )
        tasks = sorted({evaluation.task for evaluation in self.evaluations})
        if len(tasks) > 1:
            raise ValueError(f"the seeds of {self.name!r} have the tasks {tasks}; expected one task")

    @property
    def task(self) -> str:
        """The task of all its evaluations."""
        return self.evaluations[0].task


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything on the page, in reading order.

    Args:
        title: the heading.
        recipe: what was run, in a few words.
        about: name -> value of what a reader needs to trust it: machine, versions, data, licence.
        entries: the methods, at least one, names unique, one task.
        diagnoses: entry name -> a diagnosis to print in full, its `text()`, in a fold below the dials.
        figures: the panels, in order.
        notes: sentences on the data, their licences and what the numbers do not show.
        command: the exact command that makes these numbers again.

    Raises:
        ValueError: no entry, a name twice, tasks that differ, or a diagnosis of an unknown name.
    """

    title: str
    recipe: str
    about: Mapping[str, str]
    entries: Sequence[Entry]
    command: str
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    figures: Sequence[Panel] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if not names:
            raise ValueError("got a report without entries; expected at least one method")
        if len(set(names)) < len(names):
            raise ValueError(f"got the method names {names}; expected each name once: rename one of them")
        tasks = sorted({entry.task for entry in self.entries})
        if len(tasks) > 1:
            raise ValueError(
                f"got entries of the tasks {tasks}; expected one: write one report for each task"
            )
        strangers = sorted(set(self.diagnoses) - set(names))
        if strangers:
            raise ValueError(f"got diagnoses of {strangers}; expected names among the entries {names}")

    @property
    def task(self) -> str:
        """The task of all its entries."""
        return self.entries[0].task

    @property
    def unfamiliar(self) -> list[str]:
        """The out-of-distribution sets of all entries, each once, in order of appearance."""
        return list(dict.fromkeys(s for entry in self.entries for e in entry.evaluations for s in e.ood))
