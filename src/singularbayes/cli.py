"""``singularbayes``: the command line.

Exit codes: 0 done, 1 a check failed, 2 bad usage or input (told in one line).
"""

from __future__ import annotations

import shlex
import sys
import textwrap
import warnings
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperCommand

app = typer.Typer(
    help="Bayesian neural networks that stay small and know when they do not know.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_INTERRUPTED = 130
_EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}

Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Data = Annotated[Path | None, typer.Option(help="Folder with the recipe's data, where it needs one.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds, from 0.")]
Resume = Annotated[bool, typer.Option("--resume", help="Keep finished jobs in --out and go on.")]
Bootstrap = Annotated[int, typer.Option(help="Resamples of the 95% intervals.")]
Resamples = Annotated[int | None, typer.Option(help="Of a file: resamples of the 95% intervals (1000).")]
Results = Annotated[Path, typer.Argument(help="Folder of a run or an evaluation, or a .csv, .parquet, .npz.")]
Jobs = Annotated[int, typer.Option(help="Fits at a time, each in a process of its own.")]


class UsageError(Exception):
    """Bad usage or input; printed as one line."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point; never shows a traceback for the user's errors."""
    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"warning: {message}", file=sys.stderr)
    try:
        code = app(args=arguments, standalone_mode=False)
    except (UsageError, ValueError, TypeError, OSError, FloatingPointError, ImportError) as error:
        _stop(error)  # the last two: a diverged fit, a package that is not there
    except typer.Exit as stop:
        code = stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except Exception as error:
        message = getattr(error, "format_message", None)  # a usage error of the parser
        if message is None:
            raise
        _stop(message())
    if code == _INTERRUPTED:  # the parser turns Ctrl-C into this code
        asked = sys.argv[1:] if arguments is None else arguments
        print(f"interrupted{_how_to_go_on(asked)}", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _how_to_go_on(arguments: list[str]) -> str:
    """What to type after Ctrl-C; nothing where nothing is kept."""
    if arguments[:1] == ["run"] and "--resume" not in arguments:
        return "; go on with the same command plus --resume"
    return "; go on with the same command" if arguments[:1] in (["run"], ["demo"]) else ""


def _stop(error: Any) -> NoReturn:
    print(f"singularbayes: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(2)


def _command() -> str:
    return shlex.join(["singularbayes", *sys.argv[1:]])


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"singularbayes {metadata.version('singularbayes')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print it and stop.")
    ] = False,
) -> None:
    """Options of the program itself; its help is the app's."""


class _RunCommand(TyperCommand):
    """``run``, whose help ends with the methods' fields, read from the methods themselves."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, with the flags that are no parameters of the command."""
        lines = [f"{name}: {' '.join(map(_flag, fields))}" for name, fields in method_flags().items()]
        self.epilog = "Fields of the methods, each a flag with a value. " + "; ".join(lines) + "."
        super().format_help(ctx, formatter)


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def method_flags() -> dict[str, list[str]]:
    """``"all that train"`` -> the training loop's fields, then method -> its own (or its members')."""
    from .methods import ALL
    from .methods.settings import Training
    from .recipes import flag_fields

    shared = flag_fields(Training())
    rest = {method.__name__: [f for f in flag_fields(method()) if f not in shared] for method in ALL}
    return {"all that train": shared} | {name: own for name, own in rest.items() if own}


@app.command()
def demo(out: Out = Path("runs/demo"), seeds: Seeds = 1) -> None:
    """The main job on real data inside the package: five methods, a table, an HTML report.

    It takes minutes on 2 cores.
    """
    from .recipes import ALL

    _run(ALL["digits"], out, data=None, seeds=seeds, methods=None, overrides={}, bootstrap=1000, resume=True)


@app.command(cls=_RunCommand, context_settings=_EXTRA)
def run(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="Name of a recipe; see `singularbayes recipes`.")],
    method: Annotated[
        list[str] | None,
        typer.Option(help="Run this method only (any unique part of its name will do); repeat for more."),
    ] = None,
    seeds: Seeds = 1,
    data: Data = None,
    out: Out = Path("runs/RECIPE"),
    resume: Resume = False,
    bootstrap: Bootstrap = 1000,
    jobs: Jobs = 1,
) -> None:
    """Run a recipe.

    Any field of a method is a flag too: --epochs 20 --temperature 1 --initial-std 0.05 ... (list below)
    """
    chosen = _recipe(recipe)
    overrides = parse_overrides(context.args)
    _check_flags(overrides)
    folder = Path("runs") / recipe if str(out) == str(Path("runs/RECIPE")) else out
    _run(
        chosen,
        folder,
        data=data,
        seeds=seeds,
        methods=method,
        overrides=overrides,
        bootstrap=bootstrap,
        resume=resume,
        jobs=jobs,
    )


def _check_flags(overrides: dict[str, Any]) -> None:
    """Raise for a flag that is no field of any method and nearly one of ``run``'s own options."""
    from difflib import get_close_matches

    fields = {name for names in method_flags().values() for name in names}
    for name in set(overrides) - fields:
        own = ("method", "seeds", "data", "out", "resume", "bootstrap", "jobs")
        near = get_close_matches(name, own, 1, 0.75)
        if near and not get_close_matches(name, fields, 1, 0.75):
            raise UsageError(f"run has no flag {_flag(name)}; did you mean {_flag(near[0])}?")


def _run(recipe: Any, out: Path, *, jobs: int = 1, **options: Any) -> None:
    from contextlib import nullcontext

    import torch

    from .recipes import processes, run_recipe
    from .terminal import print_results

    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, got {jobs}")
    torch.set_num_threads(recipe.threads)
    console = Console()
    console.print(f"[bold]{recipe.title}[/bold]\n{recipe.what}")
    with nullcontext() if jobs == 1 else processes(jobs) as executor:
        folder = run_recipe(
            recipe,
            out,
            executor=executor,
            command=_command(),
            say=lambda text: console.print(f"  {text}", highlight=False),
            **options,
        )
    print_results(console, folder)
    console.print(f"report: {folder.path / 'report.html'}", soft_wrap=True, highlight=False)


def _recipe(name: str) -> Any:
    from .recipes import ALL, did_you_mean

    if name not in ALL:
        raise UsageError(f"no recipe {name!r}; known: {', '.join(ALL)}{did_you_mean(name, ALL)}")
    return ALL[name]


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """``--learning-rate 0.01`` and ``--learning-rate=0.01`` as ``{"learning_rate": 0.01}``."""
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or len(flag) < 3:
            raise UsageError(f"unexpected argument {flag!r}")
        name, equals, value = flag[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"flag {flag} needs a value")
            value = rest.pop(0)
        found[name.replace("-", "_")] = parse_value(value)
    return found


def parse_value(text: str) -> Any:
    """A word as bool, ``None`` or number where it is one."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@app.command()
def evaluate(
    path: Results,
    csv: bool = False,
    bootstrap: Resamples = None,
) -> None:
    """Print every measure of a finished run, a saved evaluation, or any model's predictions in a file."""
    for item in _evaluations(path, bootstrap):
        table = item.table()
        if csv:
            print(table.to_csv(index=False), end="")
        else:
            print(f"\n{item.name}")
            print(table.to_string(index=False, float_format=lambda value: f"{value:.4f}"))


@app.command()
def diagnose(path: Results, bootstrap: Resamples = None) -> None:
    """Criteria A (ranking), B (scale) and C (mass), in words."""
    from .diagnosis import diagnose as judge

    for item in _evaluations(path, bootstrap):
        print(f"\n{item.name}\n{judge(item).text()}")


def _evaluations(folder: Path, bootstrap: int | None) -> list[Any]:
    """What was saved in a folder, or what a file of predictions gives, with so many resamples."""
    from .evaluation import Evaluation, evaluate_predictions
    from .recipes import ALL, open_folder

    if folder.is_file():
        resamples = {} if bootstrap is None else {"bootstrap": bootstrap}
        return list(evaluate_predictions(folder, **resamples).values())
    if bootstrap is not None:
        raise UsageError(f"--bootstrap is for a file of predictions; {folder} holds its intervals already")
    if (folder / "evaluation.json").is_file():
        return [Evaluation.load(folder)]
    return [run.evaluation for run in open_folder(folder, ALL).runs]


@app.command()
def ranks(
    source: Annotated[Path, typer.Argument(help="Folder of a run or a saved posterior, or a checkpoint.")],
    csv: bool = False,
    figure: Annotated[Path | None, typer.Option(help="Write the singular values as a picture.")] = None,
) -> None:
    """Singular values of every weight matrix: what each rank would keep, and where it saves numbers."""
    from .recipes import ALL, rank_lines

    for line in rank_lines(source, ALL, csv, figure):
        print(line)


@app.command()
def accept(
    folder: Annotated[Path | None, typer.Argument(help="Folder of a run, or of one evaluation.")] = None,
    require: Annotated[Path | None, typer.Option(help="TOML file of thresholds.")] = None,
    card: Annotated[Path | None, typer.Option(help="Write a model card in Markdown there.")] = None,
    method: Annotated[str | None, typer.Option(help="Only this method of a run; a part of its name.")] = None,
    data: Data = None,
    template: Annotated[bool, typer.Option("--template", help="Print a file to start from.")] = False,
) -> None:
    """Hold a model to a checklist: exit code 1 where an item fails or stays unmeasured."""
    from .acceptance import TEMPLATE, Checklist
    from .recipes import ALL, accept_folder

    if template:
        print(TEMPLATE, end="")
        raise typer.Exit
    if folder is None or require is None:
        raise UsageError("accept needs FOLDER and --require FILE.toml; --template prints one to begin with")
    found = accept_folder(folder, Checklist.read(require), ALL, method=method, data=data, card=card)
    print("\n\n".join(acceptance.text() for acceptance in found))
    if not all(acceptance.accepted for acceptance in found):
        raise typer.Exit(1)


@app.command()
def bound(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or one that holds a certificate.")],
    data: Data = None,
    delta: Annotated[float, typer.Option(help="Probability that a bound fails.")] = 0.025,
    delta_draws: Annotated[float, typer.Option(help="Of the estimate from finitely many draws.")] = 0.01,
    draws: Annotated[int, typer.Option(help="Draws of the weights.")] = 2000,
    subset: Annotated[int, typer.Option(help="Training rows that each draw is judged on.")] = 500,
    limit: Annotated[float | None, typer.Option(help="Of a regression: the error that costs 1.")] = None,
) -> None:
    """PAC-Bayes certificates of a run's posteriors, on its training data; or print a saved certificate."""
    from .recipes import ALL, certificate_lines

    for line in certificate_lines(folder, ALL, data, delta, delta_draws, draws, subset, limit):
        print(line)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="Folder of a run.")], data: Data = None) -> None:
    """Write the HTML report of a finished run again."""
    from .recipes import ALL, open_folder, write_report

    opened = open_folder(folder, ALL)
    kept = Path(opened.about["data"]) if opened.about.get("data") else None
    print(write_report(opened, opened.recipe.load(data or kept, 0)))


@app.command()
def recipes() -> None:
    """List the recipes and their methods."""
    import shutil

    from .recipes import ALL, slug

    width = shutil.get_terminal_size().columns

    def show(text: str, indent: str) -> None:
        print(textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False))

    for recipe in ALL.values():
        show(f"{recipe.name}{' (needs --data)' if recipe.needs_data else ''}: {recipe.what}", "  ")
        show(f"  methods: {', '.join(slug(name) for name in recipe.plans)}", "    ")
    print("\n`run RECIPE --method NAME`: any part of a method's name that is unique in the recipe will do.")


@app.command()
def doctor() -> None:
    """Check the installation: versions, device, a small fit."""
    import platform

    import torch
    from torch import nn

    from . import MeanField, __version__
    from .testing import ContractError, check_method

    machine = f"{platform.system()} {platform.machine()}"
    print(f"singularbayes {__version__}, Python {platform.python_version()}, {machine}")
    for package in ("torch", "numpy", "scikit-learn", "safetensors", "matplotlib"):
        print(f"  {package} {metadata.version(package)}")
    print(f"  threads {torch.get_num_threads()}, GPU {'yes' if torch.cuda.is_available() else 'no'}")
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    try:
        clauses = check_method(MeanField(epochs=1), network=network, data=(x, torch.arange(30) % 3))
    except ContractError as error:
        print(f"a check failed: {error}")
        raise typer.Exit(1) from None
    print(f"  {len(clauses)} checks of a small fit passed")


if __name__ == "__main__":
    main()
