"""What the cells come from: fields, their equilibria, bifurcation diagrams, and the scans over branches."""

from multistable.dynamics.bifurcation import BifurcationDiagram, bifurcation_diagram
from multistable.dynamics.equilibria import ConvergenceError, Equilibria, equilibria
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
