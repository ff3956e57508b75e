"""The dynamics behind the layers: fields, their equilibria, bifurcation diagrams, and the scans over branches."""

from multistable.dynamics.equilibria import (
    BifurcationDiagram,
    ConvergenceError,
    Equilibria,
    bifurcation_diagram,
    equilibria,
)
from multistable.dynamics.fields import FIELDS, Field, Linear, brc, damped, linear, nbrc, simplified_brc
from multistable.dynamics.implicit import implicit

__all__ = [
    "BifurcationDiagram",
    "ConvergenceError",
    "Equilibria",
    "FIELDS",
    "Field",
    "Linear",
    "bifurcation_diagram",
    "brc",
    "damped",
    "equilibria",
    "implicit",
    "linear",
    "nbrc",
    "simplified_brc",
]
