"""The figures of the paper that need no long training."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multistable import ops, surrogate
from multistable.dynamics import BifurcationDiagram, bifurcation_diagram, brc, simplified_brc
from multistable.dynamics.hysteresis import folds
from multistable_experiments.paper.figures.style import BAND, BLUE, GREY, RED, label, panels
from multistable_experiments.paper.simulations import SEEDS, first_gradients, hold_one_bit, trajectories

__all__ = [
    "brc_hysteresis",
    "convergence",
    "example_simulation",
    "fading_and_persistent",
    "gradients",
    "implicit_and_approximation",
    "stationary_memory",
    "surrogates",
]

ZERO = 1e-16
"""Where an error of exactly 0 is drawn on a logarithmic axis."""


def draw_equilibria(axis: Axes, diagram: BifurcationDiagram, colour: str) -> None:
    """Stable branches solid, unstable ones dashed; sorted along h, so that a curve through the folds stays one line."""
    order = torch.argsort(diagram.h.flatten().nan_to_num(float("inf")))
    x, h, stable = (part.flatten()[order] for part in (diagram.x, diagram.h, diagram.stable))
    kept = h.isfinite()
    x, h, stable = x[kept], h[kept], stable[kept]
    nan = torch.tensor(float("nan"), dtype=h.dtype)
    axis.plot(x, torch.where(stable, h, nan), color=colour, lw=1.8)
    axis.plot(x, torch.where(stable, nan, h), color=colour, lw=1.4, ls=(0, (3, 2)))


def fading_and_persistent() -> Figure:
    """Internal trajectories for beta = -1.5 (one equilibrium) and 1.5 (two); c = 0.01, x = 0."""
    figure, axes = panels(1, 2, sharey=True)
    starts = torch.linspace(-1, 1, 10)
    for axis, beta, title in zip(axes[0], (-1.5, 1.5), ("fading memory", "persistent memory"), strict=True):
        states = trajectories(0.0, beta, starts, 600)
        for k, start in enumerate(starts.tolist()):
            axis.plot(states[:, k], color=BLUE if start > 0 else RED, lw=1)
        label(axis, rf"$\beta = {beta}$: {title}", "internal clock, n", "")
        axis.set_xlim(0, 600)
    axes[0, 0].set_ylabel(r"internal state $\tilde{h}_t[n]$", fontsize=8.5)
    axes[0, 1].text(590, 0.80, r"$h_{t-1} > 0$", color=BLUE, fontsize=8.5, ha="right")
    axes[0, 1].text(590, -0.86, r"$h_{t-1} < 0$", color=RED, fontsize=8.5, ha="right")
    return figure


def convergence() -> Figure:
    """For beta = -1.5 (A) and 1.5 (B): trajectories at four inputs, and where they end on the steady-state curve."""
    figure = Figure(figsize=(9.4, 5.4), layout="constrained")
    grid = figure.add_gridspec(2, 5, width_ratios=[1, 1, 1, 1, 2.2])
    starts, xs = torch.linspace(-1, 1, 9), (-1.2, -0.4, 0.4, 1.2)
    for row, beta in enumerate((-1.5, 1.5)):
        for column, x in enumerate(xs):
            axis = figure.add_subplot(grid[row, column])
            states = trajectories(x, beta, starts, 500)
            for k in range(len(starts)):
                axis.plot(states[:, k], color=BLUE if states[-1, k] > 0 else RED, lw=0.9)
            label(axis, rf"$x_t = {x}$", "clock, n" if row else "", r"$\tilde{h}_t[n]$" if column == 0 else "")
            axis.set(xlim=(0, 500), ylim=(-1.05, 1.05), xticks=(0, 500))
            axis.tick_params(labelsize=8, labelleft=column == 0)
            axis.spines[["top", "right"]].set_visible(False)
            if column == 0:
                axis.text(-0.75, 1.12, "AB"[row], transform=axis.transAxes, fontsize=12, fontweight="bold")
        axis = figure.add_subplot(grid[row, 4])
        draw_equilibria(axis, bifurcation_diagram(simplified_brc(), torch.linspace(-2, 2, 2001), beta), "black")
        for x in xs:
            three = torch.tensor([-0.95, -0.1, 0.95])
            for start, end in zip(three.tolist(), trajectories(x, beta, three, 3000)[-1].tolist(), strict=True):
                if abs(end - start) > 0.15:
                    arrow = {"arrowstyle": "-|>", "color": RED, "lw": 1, "alpha": 0.7, "shrinkB": 2}
                    axis.annotate("", (x, end), (x, start), arrowprops=arrow)
        unstable = "; dashed: unstable" if beta > 0 else ""
        label(axis, rf"steady state, $\beta = {beta}${unstable}", r"input $x_t$" if row else "", "$h_t$")
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    return figure


def implicit_and_approximation() -> Figure:
    """The equilibria for beta = 1.5 against the BMRU's: branches at +-alpha, boundary -x / beta, thresholds +-beta."""
    beta, alpha = 1.5, 1.0
    figure, axes = panels(1, 1, 4.6, 3.4)
    axis = axes[0, 0]
    draw_equilibria(axis, bifurcation_diagram(simplified_brc(), torch.linspace(-2.5, 2.5, 2001), beta), BLUE)
    for side in (1, -1):
        axis.plot((-side * beta, side * 2.5), (side * alpha, side * alpha), color=RED, lw=1.8)
    axis.plot((-beta, beta), (alpha, -alpha), color=RED, lw=1.4, ls=(0, (3, 2)))
    x_c = float(folds(torch.tensor(beta))[1])
    for x, text, colour, side in (
        (x_c, rf"$x_c = {x_c:.3f}$", BLUE, "right"),
        (beta, rf"$\beta = {beta}$", RED, "left"),
    ):
        axis.plot((x, x), (-1.35, -1.25), color=colour, lw=1.5)
        axis.text(x, -1.32, f" {text} ", color=colour, fontsize=8.5, ha=side)
    axis.text(-2.45, -0.82, "implicit function", color=BLUE, fontsize=9)
    axis.text(-2.45, -1.16, r"approximation, $\alpha = 1$", color=RED, fontsize=9)
    axis.set(ylim=(-1.35, 1.2), xlim=(-2.5, 2.5))
    label(axis, "solid: stable, dashed: unstable", "input $x_t$", "state $h_t$")
    return figure


def example_simulation() -> Figure:
    """A BMRU unit driven by x_t while beta changes: it writes where x_t leaves the bistable region."""
    T = 120
    t = torch.arange(T, dtype=torch.float64)
    x = 1.1 * torch.sin(t / 7) * torch.exp(-((t - 25) ** 2) / 900) + 0.8 * torch.sin(t / 5 + 1) * torch.sigmoid(
        (t - 66) / 2
    )
    beta = torch.where(t < 60, 0.6, torch.where(t < 95, 1.0, 0.35)).double()
    h = ops.bmru_scan(x[None, :, None], beta[None, :, None], torch.ones(1), torch.full((1, 1), -1.0).double())[0, :, 0]
    figure, axes = panels(2, 1, 6.4, 1.9, sharex=True, height_ratios=[1.4, 1])
    top, bottom = axes[:, 0]
    top.fill_between(t, -beta, beta, step="mid", color=BLUE, alpha=0.12, lw=0)
    top.plot(t, x, color="black", lw=1.3)
    top.text(60, 1.06, r"bistable region, $|x_t| < \beta_t$", color=BLUE, fontsize=8.5)
    top.set_ylim(-1.15, 1.25)
    top.text(12, 1.0, "$x_t$", fontsize=9)
    bottom.step(t, h, where="mid", color=RED, lw=1.6)
    for axis in (top, bottom):
        for step in t[x.abs() >= beta].tolist():
            axis.axvspan(step - 0.5, step + 0.5, color=GREY, alpha=0.25, lw=0)
    label(top, "grey: steps that write", "", "input")
    label(bottom, "", "timestep t", "state $h_t$")
    bottom.set(yticks=(-1, 1), yticklabels=(r"$-\alpha$", r"$+\alpha$"), ylim=(-1.3, 1.3), xlim=(0, T - 1))
    return figure


def surrogates() -> Figure:
    """The function whose derivative replaces that of the Heaviside step, and that derivative."""
    figure, axes = panels(1, 2)
    x = torch.linspace(-2, 2, 801, dtype=torch.float64)
    shades = {0.0: "#8db1de", 0.5: "#5588c7", 1.0: BLUE, 3.0: "#0b2747"}
    left, right = axes[0]
    left.plot((-2, 0, 0, 2), (0, 0, 1, 1), color=RED, lw=1.2)
    left.text(1.97, 1.04, "Heaviside", color=RED, fontsize=8.5, ha="right")
    for alpha_surr, colour in shades.items():
        left.plot(x, surrogate.primitive(x, alpha_surr), color=colour, lw=1.5)
        right.plot(x, surrogate.derivative(x, alpha_surr), color=colour, lw=1.5)
    for row, (alpha_surr, colour) in enumerate(shades.items()):
        right.text(1.05, 0.9 - 0.1 * row, rf"$\alpha_{{surr}} = {alpha_surr:g}$", color=colour, fontsize=8.5)
    left.set_ylim(-0.4, 1.4)
    right.set_ylim(0, 1.14)
    label(left, "function", "x", "f(x)")
    label(right, "derivative", "x", "df/dx")
    return figure


def stationary_memory() -> Figure:
    """One-unit BMRU and LRU, trained to output their first input at the last of 50 steps: states, and error against
    length, of the first seed that learned; the titles say how many of ten did."""
    data = hold_one_bit()
    figure, axes = panels(1, 3)
    for axis, name, values in (
        (axes[0, 0], "BMRU", data.states["BMRU"]),
        (axes[0, 1], "LRU", data.states["LRU"].abs()),
    ):
        for row, colour, style, text in ((0, BLUE, "-", "$+1$"), (1, RED, "--", "$-1$")):
            axis.plot(values[row], color=colour, ls=style, lw=1.5, label=f"first input {text}")
        title = f"{name} (learned with {data.learned[name]} of {SEEDS} seeds)"
        label(axis, title, "timestep t", "state $h_t$" if name == "BMRU" else r"norm of the state $|h_t|$")
    axes[0, 0].legend(fontsize=8, frameon=False, loc="center right")
    axes[0, 1].set_ylim(bottom=0)
    right = axes[0, 2]
    for name, colour in (("BMRU", BLUE), ("LRU", RED)):
        errors = [max(error, ZERO) for error in data.errors[name]]
        right.loglog(data.lengths, errors, color=colour, marker="o", ms=3, lw=1.5)
        right.text(data.lengths[-1], errors[-1] * 4, name, color=colour, fontsize=9, ha="right")
    right.set_ylim(top=100)  # room for the upper name
    powers = (-12, -8, -4, 0)
    right.set_yticks([ZERO, *(10.0**n for n in powers)], ["0", *(f"$10^{{{n}}}$" for n in powers)])
    right.axvline(50, color=BAND, lw=3, zorder=0)
    right.text(50, 1e-8, "trained", color="#6a6a6a", fontsize=8, rotation=90, ha="right")
    label(right, "error against length", "sequence length T", "mean squared error")
    return figure


def gradients() -> Figure:
    """Gradient of the last state with respect to the first candidate and threshold: constant, or exactly zero."""
    lengths = (2, 5, 10, 30, 100, 300, 1000, 3000, 10_000)
    figure, axes = panels(1, 2, sharey=True)
    later, only = first_gradients(lengths, True), first_gradients(lengths, False)
    names = (r"$\partial h_T / \partial \hat h_1$", r"$\partial h_T / \partial \beta_1$")
    for axis, constant, zero, name in zip(axes[0], only, later, names, strict=True):
        for values, colour, text in (
            (constant, BLUE, "only the first step writes"),
            (zero, RED, "a later step writes too"),
        ):
            axis.plot(lengths, values, color=colour, marker="o", ms=3, lw=1.4)
            axis.text(lengths[-1], values[-1] + 0.06, text, color=colour, fontsize=8.5, ha="right")
        axis.set(xscale="log", ylim=(-0.7, 1.0))
        label(axis, name, "sequence length T", "gradient" if axis is axes[0, 0] else "")
    return figure


def brc_hysteresis() -> Figure:
    """The BRC's steady states against its input: monostable, singular, bistable."""
    figure, axes = panels(1, 3, 2.8, sharey=True)
    for axis, b_a, title in zip(axes[0], (-1.0, 0.0, 1.0), ("monostable", "singular", "bistable"), strict=True):
        draw_equilibria(axis, bifurcation_diagram(brc(), torch.linspace(-1.5, 1.5, 2000), b_a, 0.0, 0.0, 0.0), BLUE)
        label(axis, rf"$b_a = {b_a:g}$: {title}", "input $x_t$", "state $h_t$" if axis is axes[0, 0] else "")
    axes[0, 2].text(0.12, 0.12, "unstable", color=BLUE, fontsize=8.5)
    return figure
