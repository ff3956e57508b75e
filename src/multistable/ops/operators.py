"""The scans as torch operators: shapes for tracing, gradients for autograd, a backend for the work.

``torch.ops.multistable.*`` is what ``torch.compile`` and ``torch.export`` see::

    bmru_scan     cand, beta [B, T, N], alpha [N]
    bmru_layer    proj [B, T, 2N], cand then beta ([T, B, 2N] if time_major): one gradient of that shape, no split
    latch_scan    write, value [B, T, N]
    linear_scan   a [B, T, N] or [N], b [B, T, N]; with ``pairs`` the last axis holds real parts, then imaginary

Each returns all states and a copy of the last one, whose gradient comes back apart: slicing it from the states would
cost the backward two more passes over them. The backend is chosen inside the operator, where the real tensors are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from multistable.ops.dispatch import choose, load
from multistable.ops.memory import fresh
from multistable.ops.numerics import wide

_library = torch.library.Library("multistable", "DEF")


def _define(
    name: str,
    inputs: tuple[str, ...],
    options: str,
    scan: Callable,
    scan_fake: Callable,
    backward: Callable,
    backward_fake: Callable,
    unsaved: tuple[str, ...] = (),
) -> None:
    """Define the operator ``name``, its gradient ``name_backward``, and the shapes of what they return::

        name           *inputs, h0, reset, *options, backend -> h, h_last
        name_backward  grad_h, grad_last, *inputs, h0, reset, h, *options, backend -> gradients of *inputs and h0

    The gradient does not get the inputs named in ``unsaved``.
    """
    tensors = (*inputs, "h0", "reset")
    saved = [i for i, x in enumerate(tensors) if x not in unsaved]
    declared = [f"Tensor{'?' if x in ('h0', 'reset') else ''} {x}" for x in tensors]
    grads = ", ".join(["Tensor"] * (len(inputs) + 1))

    def setup(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*(inputs[i] for i in saved), output[0])
        ctx.options = inputs[len(tensors) :]
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None) -> tuple:
        found = call(f"{name}_backward", grad_h, grad_last, *ctx.saved_tensors, *ctx.options)
        wanted = (grad if needed else None for grad, needed in zip(found, ctx.needs_input_grad, strict=False))
        return *wanted, None, *(None for _ in ctx.options)  # reset and options have no gradient

    _functions[name] = _function(name, setup, differentiate)

    def compute(ctx: Any, *args: Any) -> tuple[Tensor, ...]:  # torch binds setup_context's arguments anew, for 0.1 ms
        outputs = scan(*args)
        setup(ctx, args, outputs)
        return outputs

    _direct[name] = _autograd(f"_direct_{name}", forward=compute, backward=differentiate)
    _compute[name], _compute[f"{name}_backward"] = scan, backward

    forward = f"{name}({', '.join(declared)}, {options}, str backend) -> (Tensor, Tensor)"
    _register(forward, scan, scan_fake, differentiate, setup)
    kept = ", ".join(declared[i] for i in saved)
    schema = (
        f"{name}_backward(Tensor? grad_h, Tensor? grad_last, {kept}, Tensor h, {options}, str backend) -> ({grads})"
    )
    _register(schema, backward, backward_fake, refuse_twice)
    _functions[f"{name}_backward"] = _function(f"{name}_backward", lambda *_: None, refuse_twice)


def call(name: str, *args: Any) -> Any:
    """Call the operator ``name``; or, where nothing watches operators, directly what computes it.

    A layer's forward at T = 1 on a CPU then takes 122 us instead of 149, and with the backward 457 instead of 541.

    Under ``torch.func`` and forward-mode differentiation an autograd function stands in for the operator, because
    ``torch.func`` refuses operators with a gradient of their own, and forward mode takes their tangent for zero, where
    it refuses functions.
    """
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return _functions[name].apply(*args)
    if not watched(args):
        if not (torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)):
            return _compute[name](*args)
        if name in _direct:
            return _direct[name].apply(*args)
    return getattr(torch.ops.multistable, name)(*args)


def watched(args: tuple) -> bool:
    """Whether something records operators, or changes what they get: a compiler, a tracer, a mode, a kind of tensor, a
    view that is still to be negated, a tensor without numbers."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    if torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack() > 0:
        return True
    tensors = (x for x in args if isinstance(x, Tensor))
    return any(type(x) not in (Tensor, torch.nn.Parameter) or x.is_neg() or x.is_meta for x in tensors)


_functions: dict[str, Any] = {}
"""Each operator, and each gradient, as an autograd function that calls it: for ``torch.func``."""
_direct: dict[str, Any] = {}
"""Each operator as an autograd function that calls what computes it, past torch's dispatcher."""
_compute: dict[str, Callable] = {}
"""What computes each operator and each gradient."""


def _function(name: str, setup: Callable, differentiate: Callable) -> type[torch.autograd.Function]:
    """The operator ``name`` for ``torch.func``: ``vmap`` calls it once per example."""

    def forward(*args: Any) -> tuple[Tensor, ...]:
        return getattr(torch.ops.multistable, name)(*args)

    vmap = each_example(lambda *args: call(name, *args))
    return _autograd(f"_{name}", forward=forward, setup_context=setup, backward=differentiate, vmap=vmap)


def each_example(function: Callable[..., tuple[Tensor, ...]]) -> Callable:
    """The rule by which ``vmap`` calls ``function`` once per example, for the ``vmap`` of an autograd function."""

    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        each = [
            function(*(x if dim is None else x.select(dim, i) for x, dim in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        outputs = tuple(torch.stack(found) for found in zip(*each, strict=True))
        return outputs, (0,) * len(outputs)

    return vmap


def _autograd(name: str, **members: Callable) -> type[torch.autograd.Function]:
    return type(name, (torch.autograd.Function,), {key: staticmethod(value) for key, value in members.items()})


def _register(
    schema: str, compute: Callable, fake: Callable, backward: Callable, setup: Callable | None = None
) -> None:
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, compute, "CompositeExplicitAutograd")
    torch.library.register_fake(f"multistable::{name}", fake, lib=_library)
    torch.library.register_autograd(f"multistable::{name}", backward, setup_context=setup, lib=_library)


def refuse_twice(*_: Any) -> None:
    raise RuntimeError("this scan has no second derivative; backend='reference' has")


def _backend(name: str, x: Tensor) -> Any:
    return load(choose(name, x).backend)


def _cast(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype)


def _states_like(x: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for all states of ``x [B, T, N]`` and for the last one."""
    h = torch.empty_like(x, memory_format=torch.contiguous_format)
    return h, _state_like(h)


def _state_like(h: Tensor, h0: Tensor | None = None) -> Tensor:
    """Memory for one state ``[B, N]``, in the dtype of ``h0`` if there is one."""
    return h.new_empty(h.shape[0], h.shape[2], dtype=h.dtype if h0 is None else h0.dtype)


def last_state(h: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """The state after the scan, ``[B, N]``: a copy, because outputs must not share memory, and not with h0 either."""
    if h.shape[1] == 0:
        return torch.zeros_like(_state_like(h)) if h0 is None else h0.to(h.dtype, copy=True)
    return h[:, 0 if reverse else -1].clone(memory_format=torch.contiguous_format)


def _nothing(h: Tensor, grad_last: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The gradient of h0 when there is no timestep: the last state is h0 itself."""
    zero = torch.zeros_like(_state_like(h), dtype=dtype)
    return zero if grad_last is None or h.shape[1] else zero + grad_last


# --- BMRU -------------------------------------------------------------------------------------------------------------


def _bmru_forward(cand, beta, alpha, h0, reset, reverse, backend, h) -> Tensor:
    """Fill ``h`` (a view in [B, T, N] order) and return the last state, which a backend may know already."""
    h0 = _cast(h0, cand.dtype)
    last = None
    if h.numel():
        last = _backend(backend, cand).bmru_forward(cand, beta, alpha, h0, reset, h, reverse=reverse)
    return last_state(h, h0, reverse) if last is None else last


def _bmru_backward(
    grad_h, grad_last, cand, beta, alpha, h0, reset, h, alpha_surr, reverse, backend, grad_cand, grad_beta
) -> tuple[Tensor, Tensor]:
    """Fill the gradients of cand and beta, return those of alpha and h0 in the dtypes of these."""
    if h.numel():
        grad_alpha, grad_h0 = _backend(backend, cand).bmru_backward(
            grad_h,
            grad_last,
            cand,
            beta,
            alpha,
            _cast(h0, cand.dtype),
            reset,
            h,
            grad_cand,
            grad_beta,
            alpha_surr=alpha_surr,
            reverse=reverse,
        )
    else:
        grad_alpha, grad_h0 = torch.zeros_like(alpha), _nothing(h, grad_last, wide(h.dtype))
    return grad_alpha.to(alpha.dtype), grad_h0.to(cand.dtype if h0 is None else h0.dtype)


def _bmru_scan(cand, beta, alpha, h0, reset, alpha_surr, reverse, backend):
    h = fresh(cand)
    return h, _bmru_forward(cand, beta, alpha, h0, reset, reverse, backend, h)


def _bmru_scan_backward(grad_h, grad_last, cand, beta, alpha, h0, reset, h, alpha_surr, reverse, backend):
    grad_cand, grad_beta = fresh(h), fresh(h)
    rest = _bmru_backward(
        grad_h, grad_last, cand, beta, alpha, h0, reset, h, alpha_surr, reverse, backend, grad_cand, grad_beta
    )
    return grad_cand, grad_beta, *rest


def _bmru_scan_backward_fake(grad_h, grad_last, cand, beta, alpha, h0, reset, h, *options):
    return torch.empty_like(h), torch.empty_like(h), torch.empty_like(alpha), _state_like(h, h0)


_BMRU_OPTIONS = "float alpha_surr, bool reverse"
_define(
    "bmru_scan",
    ("cand", "beta", "alpha"),
    _BMRU_OPTIONS,
    _bmru_scan,
    lambda cand, *_: _states_like(cand),
    _bmru_scan_backward,
    _bmru_scan_backward_fake,
)


def batch_first(x: Any, time_major: bool) -> Any:
    """A view of a tensor in [B, T, N] order; None stays None."""
    return x.transpose(0, 1) if time_major and x is not None else x


def _bmru_layer(proj, alpha, h0, reset, alpha_surr, reverse, time_major, backend):
    h = fresh(proj, (*proj.shape[:2], alpha.shape[0]))
    cand, beta = batch_first(proj, time_major).chunk(2, dim=-1)
    return h, _bmru_forward(cand, beta, alpha, h0, reset, reverse, backend, batch_first(h, time_major))


def _bmru_layer_fake(proj, alpha, h0, reset, alpha_surr, reverse, time_major, backend):
    h = proj.new_empty(*proj.shape[:2], alpha.shape[0])
    return h, _state_like(batch_first(h, time_major))


def _bmru_layer_backward(grad_h, grad_last, proj, alpha, h0, reset, h, alpha_surr, reverse, time_major, backend):
    grad_proj = fresh(proj)
    grad_h, h, both, out = (batch_first(x, time_major) for x in (grad_h, h, proj, grad_proj))
    rest = _bmru_backward(
        grad_h,
        grad_last,
        *both.chunk(2, dim=-1),
        alpha,
        h0,
        reset,
        h,
        alpha_surr,
        reverse,
        backend,
        *out.chunk(2, dim=-1),
    )
    return grad_proj, *rest


def _bmru_layer_backward_fake(grad_h, grad_last, proj, alpha, h0, reset, h, alpha_surr, reverse, time_major, backend):
    return proj.new_empty(proj.shape), torch.empty_like(alpha), _state_like(batch_first(h, time_major), h0)


_define(
    "bmru_layer",
    ("proj", "alpha"),
    f"{_BMRU_OPTIONS}, bool time_major",
    _bmru_layer,
    _bmru_layer_fake,
    _bmru_layer_backward,
    _bmru_layer_backward_fake,
)


# --- latch ------------------------------------------------------------------------------------------------------------


def as_gate(write: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """A float gate as a boolean one; where the gate is NaN, NaN is written."""
    if write.dtype == torch.bool:
        return write, value
    return write != 0, torch.where(write.isnan(), write, value)


def _latch_scan(write, value, h0, reset, reverse, backend):
    h = fresh(value)
    h0 = _cast(h0, value.dtype)
    last = None
    if h.numel():
        write, value = as_gate(write, value)
        last = _backend(backend, value).latch_forward(write, value, h0, reset, h, reverse=reverse)
    return h, last_state(h, h0, reverse) if last is None else last


def _latch_scan_backward(grad_h, grad_last, write, value, h0, reset, h, reverse, backend):
    grad_value = fresh(h)
    grad_write = fresh(h) if write.is_floating_point() else None
    if h.numel():
        write, value = as_gate(write, value)
        grad_h0 = _backend(backend, value).latch_backward(
            grad_h,
            grad_last,
            write,
            value,
            _cast(h0, value.dtype),
            reset,
            h,
            grad_write,
            grad_value,
            reverse=reverse,
        )
    else:
        grad_h0 = _nothing(h, grad_last, wide(h.dtype))
    grad_write = h.new_empty(0) if grad_write is None else grad_write
    return grad_write, grad_value, grad_h0.to(h.dtype if h0 is None else h0.dtype)


def _latch_scan_backward_fake(grad_h, grad_last, write, value, h0, reset, h, *options):
    grad_write = torch.empty_like(h) if write.is_floating_point() else h.new_empty(0)
    return grad_write, torch.empty_like(h), _state_like(h, h0)


_define(
    "latch_scan",
    ("write", "value"),
    "bool reverse",
    _latch_scan,
    lambda write, value, *_: _states_like(value),
    _latch_scan_backward,
    _latch_scan_backward_fake,
)


# --- linear -----------------------------------------------------------------------------------------------------------


def _linear_scan(a, b, h0, reset, pairs, reverse, backend):
    h = fresh(b)
    h0 = _cast(h0, b.dtype)
    last = None
    if h.numel():
        last = _backend(backend, b).linear_forward(a, b, h0, reset, h, pairs=pairs, reverse=reverse)
    return h, last_state(h, h0, reverse) if last is None else last


def _linear_scan_backward(grad_h, grad_last, a, h0, reset, h, pairs, reverse, backend):
    grad_b = fresh(h)
    if h.numel():
        grad_a, grad_h0 = _backend(backend, h).linear_backward(
            grad_h, grad_last, a, _cast(h0, h.dtype), reset, h, grad_b, pairs=pairs, reverse=reverse
        )
    else:
        grad_a, grad_h0 = torch.zeros_like(a), _nothing(h, grad_last, wide(h.dtype))
    grad_a = grad_a.to(a.dtype).contiguous()
    return grad_a, grad_b, grad_h0.to(h.dtype if h0 is None else h0.dtype)


def _linear_scan_backward_fake(grad_h, grad_last, a, h0, reset, h, *options):
    return a.new_empty(a.shape), torch.empty_like(h), _state_like(h, h0)


_define(
    "linear_scan",
    ("a", "b"),
    "bool pairs, bool reverse",
    _linear_scan,
    lambda a, b, *_: _states_like(b),
    _linear_scan_backward,
    _linear_scan_backward_fake,
    unsaved=("b",),
)
