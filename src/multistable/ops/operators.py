"""The scans as torch operators: shapes for tracing, gradients for autograd, a backend for the work.

``torch.ops.multistable.*`` is what ``torch.compile`` and ``torch.export`` see::

    bmru_scan     cand, beta [B, T, N], alpha [N]
    bmru_layer    proj [B, T, 2N], cand then beta ([T, B, 2N] if time_major): one gradient of that shape, no split
    latch_scan    write, value [B, T, N]
    linear_scan   a [B, T, N] or [N], b [B, T, N]; with ``pairs`` the last axis holds real parts, then imaginary

Each returns all states and a copy of the last one, whose gradient comes back separately: slicing it from the states
would cost the backward two more passes over them. The backend is chosen inside the operator, where the real tensors
are.

Where nothing traces or intercepts operators, :func:`call` uses an autograd function in place of the operator. Both
compute the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from multistable.ops import pieces
from multistable.ops.autograd import Function, saved_tensors
from multistable.ops.dispatch import choose, load
from multistable.ops.memory import new_empty

__all__ = [
    "as_gate",
    "backend_for",
    "batch_first",
    "batched",
    "call",
    "compute",
    "each_example",
    "in_onnx",
    "intercepted",
    "last_state",
    "raise_no_second_derivative",
    "register",
    "save_nothing",
    "transformed",
]

Optional = Tensor | None
Tensors = tuple[Tensor, ...]
Compute = Callable[..., Tensors]

_torch: Any = torch  # private and untyped names
_library: Any = torch.library.Library("multistable", "DEF")
_compute: dict[str, Compute] = {}
"""What computes each operator and each gradient."""
_functions: dict[str, type[Function]] = {}
"""Each operator and each gradient as an autograd function."""
in_onnx: dict[str, Compute] = {}
"""What replaces an operator while ``torch.onnx.export`` runs; filled by :mod:`multistable.export`. The old exporter
(``dynamo=False``), which traces, has no loop over time: it sees the operator, and names it in its error."""
_PLAIN = (Tensor, torch.nn.Parameter)
_CUT = ("bmru_scan", "bmru_layer", "latch_scan", "linear_scan")
"""The operators that ask whether the sequence is cut. For maps, the functions that call them ask."""


def call(name: str, *args: Any) -> Any:
    """Call the operator ``name``, or an autograd function that computes the same with less overhead.

    The function is used unless something traces or intercepts operators. It is also used under ``torch.func``, which
    refuses operators with a gradient of their own, and in forward-mode AD, where operators would drop the tangent and
    functions raise. With gradients disabled the function is skipped, too: a layer's forward at T = 1 on a CPU then
    takes 148 us instead of 189 by the function or 178 by the operator.
    """
    cut = pieces.current()
    if cut is not None and name in _CUT:
        return cut.scan(name, *args)
    if not transformed():
        if intercepted(*args):
            if torch.onnx.is_in_onnx_export() and name in in_onnx and not _torch._C._is_tracing():
                return in_onnx[name](*args)
            return getattr(torch.ops.multistable, name)(*args)
        if not torch.is_grad_enabled():
            return _compute[name](*args)
        return _functions[name].apply_untransformed(*args)
    return _functions[name].apply(*args)


def compute(name: str, *args: Any) -> Tensors:
    """Call the operator ``name`` on tensors of this process alone and without autograd."""
    return _compute[name](*args)


def transformed() -> bool:
    """Whether ``torch.func`` transforms or forward-mode AD are active."""
    return _torch._C._are_functorch_transforms_active() or _torch.autograd.forward_ad._current_level >= 0


def intercepted(*args: Any) -> bool:
    """Whether something records operators or changes their arguments: a compiler, a tracer, a mode, a tensor subclass,
    a lazily negated view, a meta tensor, the batch of gradients of ``jacobian(vectorize=True)``."""
    if torch.compiler.is_compiling() or _torch._C._is_tracing():
        return True
    if _torch._C._len_torch_dispatch_stack() + _torch._C._len_torch_function_stack() > 0:
        return True
    is_batch = _torch._C._functorch.is_legacy_batchedtensor
    for x in args:  # a loop: generators take twice as long, 4 us for four tensors
        if type(x) in _PLAIN:
            if x.is_neg() or x.is_meta or is_batch(x):
                return True
        elif isinstance(x, Tensor):
            return True
    return False


def batched(x: Tensor) -> bool:
    """Whether ``x`` is a batch of gradients of ``jacobian(vectorize=True)``: operators see one of them at a time."""
    return not torch.compiler.is_compiling() and _torch._C._functorch.is_legacy_batchedtensor(x)


def _define(
    name: str, inputs: list[str], options: str, forward: Compute, shapes: Compute, backward: Compute, unsaved: str = ""
) -> None:
    """Define the operator ``name`` and its gradient ``name_backward``::

        name           *inputs, h0, reset, *options, backend -> h, h_last
        name_backward  grad_h, grad_last, *inputs, h0, reset, h, *options, backend -> gradients of *inputs and h0

    ``shapes`` returns empty outputs for the forward. The backward does not get the input ``unsaved``, which has the
    shape of ``h``. ``options`` is the part of the schema that declares them.
    """
    tensors = [*(f"Tensor {x}" for x in inputs), "Tensor? h0", "Tensor? reset"]
    saved = [i for i, x in enumerate([*inputs, "h0", "reset"]) if x != unsaved]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.save_for_backward(*(inputs[i] for i in saved), output[0])
        ctx.options = inputs[len(tensors) :]
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grad_h: Optional, grad_last: Optional) -> tuple[Optional, ...]:
        grads = call(f"{name}_backward", grad_h, grad_last, *saved_tensors(ctx), *ctx.options)
        needed = (grad if need else None for grad, need in zip(grads, ctx.needs_input_grad, strict=False))
        return *needed, None, *(None for _ in ctx.options)  # reset and options have no gradient

    def gradient_shapes(grad_h: Optional, grad_last: Optional, *args: Any) -> Tensors:
        given: dict[int, Any] = dict(zip(saved, args, strict=False))
        h, h0 = args[len(saved)], given[len(inputs)]
        grads = [_gradient_like(given.get(i, h), h) for i in range(len(inputs))]
        h_last = shapes(*(given.get(i, h) for i in range(len(tensors))), *args[len(saved) + 1 :])[1]
        return *grads, h_last if h0 is None else torch.empty_like(h_last, dtype=h0.dtype)

    def gradients(grad_h: Optional, grad_last: Optional, *args: Any) -> Tensors:
        if args[len(saved)].numel():
            grads = backward(grad_h, grad_last, *args)
        else:  # no steps: h_last is h0
            *zeros, grad_h0 = (torch.zeros_like(x) for x in gradient_shapes(grad_h, grad_last, *args))
            grads = *zeros, grad_h0 if grad_last is None else grad_h0 + grad_last.to(grad_h0.dtype)
        return tuple(grad.contiguous() for grad in grads)  # as gradient_shapes says

    schema = f"({', '.join(tensors)}, {options}, str backend) -> (Tensor, Tensor)"
    register(name, schema, forward, shapes, setup, differentiate)
    kept = ", ".join(["Tensor? grad_h", "Tensor? grad_last", *(tensors[i] for i in saved), "Tensor h"])
    schema = f"({kept}, {options}, str backend) -> ({', '.join(['Tensor'] * (len(inputs) + 1))})"
    register(f"{name}_backward", schema, gradients, gradient_shapes, save_nothing, raise_no_second_derivative)


def register(
    name: str, schema: str, compute: Compute, fake: Compute, setup: Callable[..., None], backward: Callable[..., Any]
) -> None:
    """Register ``compute`` as a torch operator and as an autograd function."""
    _library.define(name + schema)
    _library.impl(name, compute, "CompositeExplicitAutograd")
    _torch.library.register_fake(f"multistable::{name}", fake, lib=_library)
    _torch.library.register_autograd(f"multistable::{name}", backward, setup_context=setup, lib=_library)

    def forward(*args: Any) -> Tensors:
        return getattr(torch.ops.multistable, name)(*args) if intercepted(*args) else compute(*args)

    members = {"forward": forward, "setup_context": setup, "backward": backward}
    members["jvp"] = _raise_no_forward_mode
    members["vmap"] = each_example(lambda *args: call(name, *args))
    methods = {key: staticmethod(member) for key, member in members.items()}
    _functions[name] = type(f"_{name}", (Function,), methods)
    _compute[name] = compute


def each_example(function: Compute) -> Callable[..., tuple[Tensors, tuple[int, ...]]]:
    """The ``vmap`` of an autograd function: call ``function`` once per example."""

    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensors, tuple[int, ...]]:
        each = [
            function(*(x if dim is None else x.select(dim, i) for x, dim in zip(args, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        outputs = tuple(torch.stack(examples) for examples in zip(*each, strict=True))
        return outputs, (0,) * len(outputs)

    return vmap


def raise_no_second_derivative(*_: Any) -> None:
    raise RuntimeError("this scan has no second derivative; backend='reference' has")


def _raise_no_forward_mode(*_: Any) -> None:
    raise NotImplementedError("this scan has no forward-mode AD (jvp): use backend='reference' or reverse mode, jacrev")


def save_nothing(*_: Any) -> None:
    pass


def _gradient_like(x: Tensor, h: Tensor) -> Tensor:
    """Memory for the gradient of an input; none for a boolean one."""
    return x.new_empty(x.shape) if x.is_floating_point() else h.new_empty(0)


def batch_first(x: Any, time_major: bool) -> Any:
    """A view of a tensor in [B, T, N] order; None stays None."""
    return x.transpose(0, 1) if time_major and x is not None else x


def last_state(h: Tensor, h0: Optional, reverse: bool) -> Tensor:
    """The state after the scan, ``[B, N]``: a copy, because outputs must share memory neither with h nor with h0."""
    if h.shape[1] == 0:
        return h.new_zeros(h.shape[0], h.shape[2]) if h0 is None else h0.to(h.dtype, copy=True).contiguous()
    return h[:, 0 if reverse else -1].clone(memory_format=torch.contiguous_format)


def as_gate(write: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """A float gate as a boolean one; where the gate is NaN, NaN is written."""
    if write.dtype == torch.bool:
        return write, value
    return write != 0, torch.where(write.isnan(), write, value)


def _states_like(x: Tensor, *_: Any) -> Tensors:
    """Memory for all states of ``x [B, T, N]``, the first argument, and for the last one."""
    return x.new_empty(x.shape), x.new_empty(x.shape[0], x.shape[2])


def _states_like_second(_: Tensor, x: Tensor, *others: Any) -> Tensors:
    return _states_like(x)


def backend_for(name: str, x: Tensor) -> Any:
    return load(choose(name, x).backend)


def _cast(x: Optional, dtype: torch.dtype) -> Optional:
    return None if x is None else x.to(dtype)


def _dtype_of_state(h0: Optional, h: Tensor) -> torch.dtype:
    return h.dtype if h0 is None else h0.dtype


def _bmru_states(
    cand: Tensor, beta: Tensor, alpha: Tensor, h0: Optional, reset: Optional, h: Tensor, reverse: bool, backend: str
) -> Tensor:
    """Fill ``h`` (a view in [B, T, N] order) and return the last state, which some backends return themselves."""
    h0, h_last = _cast(h0, h.dtype), None
    if h.numel():
        h_last = backend_for(backend, h).bmru_forward(cand, beta, alpha, h0, reset, h, reverse=reverse)
    return last_state(h, h0, reverse) if h_last is None else h_last


def _bmru_gradients(
    grad_h: Optional, grad_last: Optional, cand: Tensor, beta: Tensor, alpha: Tensor, h0: Optional, reset: Optional,
    h: Tensor, out: Tensors, alpha_surr: float, reverse: bool, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill ``out``, the gradients of cand and beta; return those of alpha and h0."""
    saved = cand, beta, alpha, _cast(h0, h.dtype), reset, h
    grad_alpha, grad_h0 = backend_for(backend, h).bmru_backward(
        grad_h, grad_last, *saved, *out, alpha_surr=alpha_surr, reverse=reverse
    )
    return grad_alpha.to(alpha.dtype), grad_h0.to(_dtype_of_state(h0, h))


def _bmru_scan(
    cand: Tensor, beta: Tensor, alpha: Tensor, h0: Optional, reset: Optional, _: float, reverse: bool, backend: str
) -> Tensors:
    h = new_empty(cand, cand.shape)
    return h, _bmru_states(cand, beta, alpha, h0, reset, h, reverse, backend)


def _bmru_scan_backward(
    grad_h: Optional, grad_last: Optional, cand: Tensor, beta: Tensor, alpha: Tensor, h0: Optional, reset: Optional,
    h: Tensor, alpha_surr: float, reverse: bool, backend: str,
) -> Tensors:  # fmt: skip
    out = new_empty(h, h.shape), new_empty(h, h.shape)
    options = alpha_surr, reverse, backend
    return *out, *_bmru_gradients(grad_h, grad_last, cand, beta, alpha, h0, reset, h, out, *options)


def _bmru_layer(
    proj: Tensor, alpha: Tensor, h0: Optional, reset: Optional, _: float, reverse: bool, time_major: bool, backend: str
) -> Tensors:
    h = new_empty(proj, (*proj.shape[:2], alpha.shape[0]))
    cand, beta = batch_first(proj, time_major).chunk(2, dim=-1)
    return h, _bmru_states(cand, beta, alpha, h0, reset, batch_first(h, time_major), reverse, backend)


def _bmru_layer_shapes(
    proj: Tensor, alpha: Tensor, h0: Optional, reset: Optional, _: float, reverse: bool, time_major: bool, backend: str
) -> Tensors:
    B, N = proj.shape[1 if time_major else 0], alpha.shape[0]
    return proj.new_empty(*proj.shape[:2], N), proj.new_empty(B, N)


def _bmru_layer_backward(
    grad_h: Optional, grad_last: Optional, proj: Tensor, alpha: Tensor, h0: Optional, reset: Optional, h: Tensor,
    alpha_surr: float, reverse: bool, time_major: bool, backend: str,
) -> Tensors:  # fmt: skip
    grad_proj = new_empty(proj, proj.shape)
    grad_h, h, both, out = (batch_first(x, time_major) for x in (grad_h, h, proj, grad_proj))
    (cand, beta), out = both.chunk(2, dim=-1), out.chunk(2, dim=-1)
    options = alpha_surr, reverse, backend
    return grad_proj, *_bmru_gradients(grad_h, grad_last, cand, beta, alpha, h0, reset, h, out, *options)


_SCAN, _LAYER = "float alpha_surr, bool reverse", "float alpha_surr, bool reverse, bool time_major"
_define("bmru_scan", ["cand", "beta", "alpha"], _SCAN, _bmru_scan, _states_like, _bmru_scan_backward)
_define("bmru_layer", ["proj", "alpha"], _LAYER, _bmru_layer, _bmru_layer_shapes, _bmru_layer_backward)


def _latch_scan(write: Tensor, value: Tensor, h0: Optional, reset: Optional, reverse: bool, backend: str) -> Tensors:
    h, h0, h_last = new_empty(value, value.shape), _cast(h0, value.dtype), None
    if h.numel():
        h_last = backend_for(backend, h).latch_forward(*as_gate(write, value), h0, reset, h, reverse=reverse)
    return h, last_state(h, h0, reverse) if h_last is None else h_last


def _latch_scan_backward(
    grad_h: Optional, grad_last: Optional, write: Tensor, value: Tensor, h0: Optional, reset: Optional, h: Tensor,
    reverse: bool, backend: str,
) -> Tensors:  # fmt: skip
    grad_write, grad_value = new_empty(h, h.shape) if write.is_floating_point() else None, new_empty(h, h.shape)
    saved = *as_gate(write, value), _cast(h0, h.dtype), reset, h
    grad_h0 = backend_for(backend, h).latch_backward(grad_h, grad_last, *saved, grad_write, grad_value, reverse=reverse)
    grad_write = h.new_empty(0) if grad_write is None else grad_write
    return grad_write, grad_value, grad_h0.to(_dtype_of_state(h0, h))


_define("latch_scan", ["write", "value"], "bool reverse", _latch_scan, _states_like_second, _latch_scan_backward)


def _linear_scan(
    a: Tensor, b: Tensor, h0: Optional, reset: Optional, pairs: bool, reverse: bool, backend: str
) -> Tensors:
    h, h0, h_last = new_empty(b, b.shape), _cast(h0, b.dtype), None
    if h.numel():
        h_last = backend_for(backend, h).linear_forward(a, b, h0, reset, h, pairs=pairs, reverse=reverse)
    return h, last_state(h, h0, reverse) if h_last is None else h_last


def _linear_scan_backward(
    grad_h: Optional, grad_last: Optional, a: Tensor, h0: Optional, reset: Optional, h: Tensor,
    pairs: bool, reverse: bool, backend: str,
) -> Tensors:  # fmt: skip
    grad_b = new_empty(h, h.shape)
    grad_a, grad_h0 = backend_for(backend, h).linear_backward(
        grad_h, grad_last, a, _cast(h0, h.dtype), reset, h, grad_b, pairs=pairs, reverse=reverse
    )
    return grad_a.to(a.dtype), grad_b, grad_h0.to(_dtype_of_state(h0, h))


_LINEAR = "bool pairs, bool reverse"
_define("linear_scan", ["a", "b"], _LINEAR, _linear_scan, _states_like_second, _linear_scan_backward, unsaved="b")
