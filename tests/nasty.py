"""Random and nasty inputs for the scans: edge-case values, odd shapes, non-contiguous layouts.

``bmru_inputs`` and ``latch_inputs`` return the keyword arguments of the scans. ``VALUES``, ``SHAPES`` and ``LAYOUTS``
list the variants. A test usually varies one of them and leaves the others plain; hypothesis combines them.
"""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

__all__ = ["LAYOUTS", "SHAPES", "VALUES", "bmru_inputs", "latch_inputs", "shape_ids"]

SHAPES = [(3, 17, 5), (2, 1, 3), (3, 7, 1), (1, 1, 1), (1, 2, 7), (2, 65, 33), (0, 4, 3), (2, 0, 3)]


def shape_ids(shape: tuple[int, int, int]) -> str:
    return "B{}-T{}-N{}".format(*shape)


def _plain(x: dict) -> None:
    pass


def _never_write(x: dict) -> None:
    x["beta"] = x["cand"].abs() + 1


def _always_write(x: dict) -> None:
    x["beta"] = x["cand"] / 2


def _tie(x: dict) -> None:
    x["beta"] = torch.where(torch.randn(x["cand"].shape) > 0, x["cand"], -x["cand"])


def _nearly_tie(x: dict) -> None:
    """|beta| is one unit in the last place above or below |cand|."""
    bits = x["cand"].abs().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x["cand"].itemsize])
    x["beta"] = (bits + torch.randint_like(bits, 2) * 2 - 1).view(x["cand"].dtype)


def _zero_cand(x: dict) -> None:
    x["cand"] = torch.zeros_like(x["cand"])
    x["beta"] = _replace_some(x["beta"], 0.0)


def _negative_zero(x: dict) -> None:
    x["cand"] = _replace_some(torch.zeros_like(x["cand"]), -0.0)
    x["beta"] = _replace_some(x["beta"], -0.0)


def _subnormal(x: dict) -> None:
    tiny = torch.finfo(x["cand"].dtype).tiny / 4
    for name in ("cand", "beta"):
        x[name] = _replace_some(torch.full_like(x[name], tiny), -2 * tiny)


def _huge(x: dict) -> None:
    """Squares and |cand| + |beta| overflow; the comparison must not."""
    top = torch.finfo(x["cand"].dtype).max
    for name in ("cand", "beta"):
        x[name] = _replace_some(torch.full_like(x[name], top), -top)


def _infinite(x: dict) -> None:
    for name in ("cand", "beta"):
        x[name] = _replace_some(_replace_some(x[name], inf), -inf)


def _nan(x: dict) -> None:
    for name in ("cand", "beta"):
        x[name] = _replace_some(x[name], nan, share=0.1)


def _nan_in_cand(x: dict) -> None:
    x["cand"] = _replace_some(x["cand"], nan, share=0.1)


def _nan_in_beta(x: dict) -> None:
    x["beta"] = _replace_some(x["beta"], nan, share=0.1)


def _nan_state(x: dict) -> None:
    x["h0"] = _replace_some(x["h0"], nan)


def _infinite_state(x: dict) -> None:
    x["h0"], x["alpha"] = _replace_some(x["h0"], -inf), _replace_some(x["alpha"], inf)


def _zero_alpha(x: dict) -> None:
    x["alpha"] = torch.zeros_like(x["alpha"])


def _wide_alpha_and_h0(x: dict) -> None:
    """float64 parameters with a narrower projection: they are rounded once."""
    x["alpha"], x["h0"] = torch.randn_like(x["alpha"].double()), torch.randn_like(x["h0"].double())


def _no_h0(x: dict) -> None:
    x["h0"] = None


def _no_reset(x: dict) -> None:
    x["reset"] = None


def _nothing_but_input(x: dict) -> None:
    x["h0"] = x["reset"] = None


def _reset_everywhere(x: dict) -> None:
    x["reset"] = torch.ones_like(x["reset"])


def _reset_first_and_never_write(x: dict) -> None:
    _never_write(x)
    x["reset"] = torch.zeros_like(x["reset"])
    x["reset"][:, :1] = True


VALUES: dict[str, Callable[[dict], None]] = {
    change.__name__.lstrip("_"): change
    for change in (
        _plain,
        _never_write,
        _always_write,
        _tie,
        _nearly_tie,
        _zero_cand,
        _negative_zero,
        _subnormal,
        _huge,
        _infinite,
        _nan,
        _nan_in_cand,
        _nan_in_beta,
        _nan_state,
        _infinite_state,
        _zero_alpha,
        _wide_alpha_and_h0,
        _no_h0,
        _no_reset,
        _nothing_but_input,
        _reset_everywhere,
        _reset_first_and_never_write,
    )
}


def _time_major(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def _halves(x: Tensor) -> Tensor:
    """The second half of a projection [B, T, 2N]."""
    return torch.cat([torch.full_like(x, nan), x], dim=-1).chunk(2, dim=-1)[1]


def _every_other_unit(x: Tensor) -> Tensor:
    return torch.stack([x, torch.full_like(x, nan)], dim=-1)[..., 0]


def _units_first(x: Tensor) -> Tensor:
    return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def _negated_view(x: Tensor) -> Tensor:
    """A lazily negated view (torch's neg bit)."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag if x.dtype in (torch.float32, torch.float64) else x


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "time_major": _time_major,
    "halves": _halves,
    "every_other_unit": _every_other_unit,
    "units_first": _units_first,
    "negated_view": _negated_view,
}


def bmru_inputs(
    dtype: torch.dtype = torch.float64,
    values: str = "plain",
    shape: tuple[int, int, int] = SHAPES[0],
    layout: str = "contiguous",
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of ``bmru_scan``: ``h0`` is not +-alpha, alpha has both signs, a tenth of the steps are resets."""
    B, T, N = shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = {
            "cand": torch.randn(B, T, N).to(dtype),
            "beta": torch.randn(B, T, N).to(dtype),
            "alpha": torch.randn(N).to(dtype),
            "h0": torch.randn(B, N).to(dtype),
            "reset": torch.rand(B, T) < 0.1,
        }
        VALUES[values](x)
    x["cand"], x["beta"] = LAYOUTS[layout](x["cand"]), LAYOUTS[layout](x["beta"])
    return x


def latch_inputs(*args: Any, gate: str = "boolean", **kwargs: Any) -> dict[str, Any]:
    """Arguments of ``latch_scan``; the nasty values are those latched. ``gate`` is ``boolean`` or ``float``."""
    x = bmru_inputs(*args, **kwargs)
    write = ~(x["cand"].abs() < x["beta"].abs())
    if gate == "float":  # strided like the value; NaN where beta is NaN
        write = torch.where(x["beta"].isnan(), x["beta"], write.to(x["beta"].dtype))
    return {"write": write, "value": x["cand"], "h0": x["h0"], "reset": x["reset"]}


def _replace_some(x: Tensor, value: float, share: float = 0.3) -> Tensor:
    return torch.where(torch.rand(x.shape) < share, torch.full_like(x, value), x)
