"""Checkpoints of a run: what was drawn, in blocks that are written once, and the state to go on from.

A block holds the steps since the one before; ``chains.json`` names how many blocks count and is written after
the last of them, so that a kill at any moment leaves a state and all the draws before it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import checkpoint

__all__ = ["Journal"]

_STEM = "chains"


class Journal:
    """The checkpoint of one run.

    Args:
        folder: of this run alone.
        settings: of the run, as text; a checkpoint with others is refused.

    Raises:
        OSError: a folder that cannot be made or written to.
    """

    def __init__(self, folder: str | Path, settings: str) -> None:
        self.folder, self.settings, self.blocks = Path(folder), settings, 0
        self._check_folder()

    def _check_folder(self) -> None:
        """Before any work: the first save comes after seconds, of a short run at its end."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            message = f"the checkpoint folder {self.folder} cannot be written to; choose another one"
            raise type(error)(error.errno, f"{message} ({error.strerror})") from error

    def read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """State and facts of the last save; ``None`` where there is none.

        Raises:
            ValueError: a damaged file, or a run with other settings.
        """
        if not (self.folder / f"{_STEM}.json").is_file():
            return None
        tensors, content = checkpoint.read_pair(self.folder, _STEM)
        if content.get("settings") != self.settings:
            raise ValueError(
                f"{self.folder} holds a checkpoint of another run: {content.get('settings')}; this one is "
                f"{self.settings}. Choose another folder or remove it"
            )
        self.blocks = int(content["blocks"])
        return tensors, content

    def block(self, number: int) -> tuple[dict[str, Tensor], int]:
        """What block ``number`` holds, and the first step in it."""
        tensors, content = checkpoint.read_pair(self.folder, _block(number))
        return tensors, int(content["first"])

    def write(
        self, block: dict[str, Tensor], first: int, state: dict[str, Tensor], facts: dict[str, Any]
    ) -> None:
        """Save the steps from ``first`` on, and the state after them.

        An interrupt in here may leave steps that the next call saves again; reading puts each in its place.
        """
        checkpoint.write_pair(self.folder, _block(self.blocks), block, {"first": first})
        content = {**facts, "settings": self.settings, "blocks": self.blocks + 1}
        checkpoint.write_pair(self.folder, _STEM, state, content)
        self.blocks += 1


def _block(number: int) -> str:
    return f"block{number:05d}"
