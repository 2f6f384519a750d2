"""A hook of mkdocs that writes the reference: a page for each public module and an index of public names.

It reads the source without importing it: a new module, method or score is there as soon as its file exists.
"""

from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGE = "singularbayes"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the folders of the navigation by the pages in them."""
    decisions = sorted((Path(config.docs_dir) / "decisions").glob("*.md"))
    pages = {
        "reference/": ["reference/index.md", *(f"reference/{module.path}.md" for module in _modules())],
        "decisions/": [f"decisions/{page.name}" for page in decisions],
    }
    config.nav = [
        {title: pages.get(entry, entry) for title, entry in item.items()} for item in config.nav or []
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    modules = _modules()
    files.append(File.generated(config, "reference/index.md", content=_index(modules)))
    for module in modules:
        text = f"# {module.path}\n\n::: {module.path}\n"
        files.append(File.generated(config, f"reference/{module.path}.md", content=text))
    return files


def _modules() -> list[griffe.Module]:
    """Every public module that has a docstring, the package first."""
    found: list[griffe.Module] = []

    def visit(module: griffe.Module) -> None:
        if module.has_docstring:
            found.append(module)
        for name, child in sorted(module.modules.items()):
            if not name.startswith("_") and not child.is_alias:
                visit(child)

    visit(griffe.load(PACKAGE, search_paths=["src"], resolve_aliases=True, allow_inspection=False))
    return found


def _index(modules: list[griffe.Module]) -> str:
    """Tables of what each public package exports and of every module, with first lines of docstrings."""
    lines = ["# Reference", ""]
    for module in modules:
        if module.is_init_module and module.exports:
            lines += [f"## {module.path}", "", "| name | what it is |", "|---|---|"]
            lines += [
                f"| {_link(module[name])} | {_first_line(module[name])} |" for name in _exported(module)
            ]
            lines.append("")
    lines += ["## Modules", "", "| module | what it holds |", "|---|---|"]
    lines += [f"| [`{module.path}`]({module.path}.md) | {_first_line(module)} |" for module in modules]
    return "\n".join([*lines, ""])


def _exported(module: griffe.Module) -> list[str]:
    """The names of `__all__` that the source defines."""
    return [str(name) for name in module.exports or [] if str(name) in module.members]


def _target(thing: griffe.Object | griffe.Alias) -> griffe.Object | griffe.Alias:
    """What a name that was imported from elsewhere stands for."""
    return thing.final_target if isinstance(thing, griffe.Alias) and thing.resolved else thing


def _link(thing: griffe.Object | griffe.Alias) -> str:
    """A link to the page of the module that defines the thing."""
    target = _target(thing)
    if not target.path.startswith(PACKAGE) or isinstance(target, griffe.Alias):
        return f"`{thing.name}`"
    page = target.path if target.is_module else target.parent.path if target.parent else PACKAGE
    anchor = "" if target.is_module or not target.has_docstring else f"#{target.path}"
    return f"[`{thing.name}`]({page}.md{anchor})"


def _first_line(thing: griffe.Object | griffe.Alias) -> str:
    """The first line of the docstring, fit for a table."""
    docstring = _target(thing).docstring
    return docstring.value.splitlines()[0].replace("|", "\\|") if docstring and docstring.value else ""
