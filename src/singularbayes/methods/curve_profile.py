"""The loss on the way from one network to another: straight, along the arc, along a trained curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas  # noqa: ICN001 - the name in annotations is absolute

__all__ = ["CurveProfile", "barrier"]

PATHS = ("line", "sphere", "curve")


def barrier(t: NDArray[np.floating], loss: NDArray[np.floating]) -> float:
    """``max_t [ loss(t) - (1 - t) loss(0) - t loss(1) ]``: how far the way rises above its ends, at least 0.

    Args:
        t: places from 0 to 1, both in it.
        loss: at these places.

    Example:
        >>> barrier(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.75, 0.5]))
        0.5
    """
    return float((loss - (1 - t) * loss[0] - t * loss[-1]).max())


@dataclass(frozen=True, eq=False)
class CurveProfile:
    """Mean NLL per example between two networks, in nats, at the same places on three ways.

    Args:
        pair: numbers of the two networks.
        t: places ``(G,)`` from 0 to 1.
        line: on the straight line ``(1 - t) w_0 + t w_1``.
        sphere: on the arc between them about the origin.
        curve: on the trained curve.

    Example:
        >>> t = np.array([0.0, 0.5, 1.0])
        >>> profile = CurveProfile(pair=(0, 1), t=t, line=t * (1 - t), sphere=0.4 * t * (1 - t), curve=0 * t)
        >>> profile.barriers
        {'line': 0.25, 'sphere': 0.1, 'curve': 0.0}
    """

    pair: tuple[int, int]
    t: NDArray[np.floating]
    line: NDArray[np.floating]
    sphere: NDArray[np.floating]
    curve: NDArray[np.floating]

    @property
    def barriers(self) -> dict[str, float]:
        """The barrier of each way, in nats per example."""
        return {name: barrier(self.t, getattr(self, name)) for name in PATHS}

    def table(self) -> pandas.DataFrame:
        """One row a way: barrier, largest, mean, and the losses of the ends."""
        import pandas  # noqa: PLC0415, ICN001 - slow to import

        rows = {
            name: {
                "barrier": barrier(self.t, loss),
                "highest": loss.max(),
                "mean": float(((loss[1:] + loss[:-1]) / 2 * np.diff(self.t)).sum()),
                "first end": loss[0],
                "last end": loss[-1],
            }
            for name in PATHS
            for loss in [getattr(self, name)]
        }
        return pandas.DataFrame.from_dict(rows, orient="index").rename_axis("way")

    def to_dict(self) -> dict[str, Any]:
        """Plain types."""
        arrays = {name: getattr(self, name).tolist() for name in ("t", *PATHS)}
        return {"pair": list(self.pair), **arrays}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CurveProfile:
        """What :meth:`to_dict` wrote, or an entry of ``posterior.info["curves"]``."""
        first, last = content["pair"]
        arrays = {name: np.asarray(content[name], dtype=np.float64) for name in ("t", *PATHS)}
        return cls(pair=(int(first), int(last)), **arrays)
