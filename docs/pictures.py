"""The README's picture, from a finished run.

python docs/pictures.py runs/sine docs/images/sine.png
"""

import sys
from pathlib import Path

from singularbayes.recipes import ALL, open_folder
from singularbayes.recipes.sine import panels


def main(run: Path, target: Path) -> None:
    """Draw the variance field of the first seed."""
    folder = open_folder(run, ALL)
    first = {name: folder.of(name)[0] for name in folder.names}
    (panel,) = panels(folder.recipe.load(None, 0), first)
    target.parent.mkdir(parents=True, exist_ok=True)
    panel.figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
