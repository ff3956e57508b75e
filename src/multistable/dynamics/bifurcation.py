"""Bifurcation diagrams: equilibria and their stability against one drive."""

from dataclasses import dataclass

from torch import Tensor

from multistable.dynamics.equilibria import equilibria
from multistable.dynamics.fields import Field

__all__ = ["BifurcationDiagram", "bifurcation_diagram"]


@dataclass(frozen=True)
class BifurcationDiagram:
    """Equilibria along one drive, as rows ``[X, R]`` padded with NaN: ``x`` repeated, ``h`` and ``stable``."""

    x: Tensor
    h: Tensor
    stable: Tensor

    @property
    def regimes(self) -> list[tuple[float, float, int]]:
        """Intervals of x, first to last sample, with the number of stable equilibria in each."""
        counts = self.stable.sum(dim=1).tolist()
        starts = [0] + [i for i in range(1, len(counts)) if counts[i] != counts[i - 1]]
        ends = [i - 1 for i in starts[1:]] + [len(counts) - 1]
        xs = self.x[:, 0].tolist()
        return [(xs[i], xs[j], counts[i]) for i, j in zip(starts, ends, strict=True)]


def bifurcation_diagram(field: Field, xs: Tensor, *args: Tensor | float, n_grid: int = 256) -> BifurcationDiagram:
    """Equilibria of ``field`` for each value of its first drive in ``xs [X]``, the other arguments held at ``args``.

    >>> import torch
    >>> from multistable.dynamics import simplified_brc
    >>> diagram = bifurcation_diagram(simplified_brc(), torch.linspace(-2, 2, 401), 1.5)
    >>> [(round(a, 2), round(b, 2), n) for a, b, n in diagram.regimes]     # folds at x = -0.905 and 0.905
    [(-2.0, -0.91, 1), (-0.9, 0.9, 2), (0.91, 2.0, 1)]
    """
    if not isinstance(xs, Tensor) or xs.ndim != 1 or not len(xs):
        got = f"shape {list(xs.shape)}" if isinstance(xs, Tensor) else type(xs).__name__
        raise ValueError(f"xs must be a line of values, [X], got {got}")
    found = equilibria(field, xs, *args, n_grid=n_grid)
    return BifurcationDiagram(xs.double()[:, None].expand_as(found.h), found.h, found.stable)
