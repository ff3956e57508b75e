"""``torch.autograd.Function`` with a type for ``apply``, which torch leaves untyped, and what it saved."""

from typing import TYPE_CHECKING, Any, cast

import torch

__all__ = ["Function", "saved_tensors"]


class Function(torch.autograd.Function):
    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: Any, **kwargs: Any) -> Any: ...

    @classmethod
    def apply_untransformed(cls, *args: Any) -> Any:
        """``apply`` with all arguments given, where no transform of ``torch.func`` is active.

        torch's own looks for default arguments first, if there is a ``setup_context``: a quarter of the time of a call
        whose kernels take none.
        """
        return cast(Any, super(torch.autograd.Function, cls)).apply(*args)


def saved_tensors(ctx: Any) -> tuple[Any, ...]:
    """The tensors that a forward saved, or an error that says what to do if its output was changed in place.

    A copy of the states for the backward alone would make it work, for 3 to 12 % of a training step (docs/log.md).
    """
    try:
        return ctx.saved_tensors
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        raise RuntimeError(
            "the output of a recurrent layer, or an input of its scan, was changed in place before the backward pass, "
            "which reads it: use an operation that is not in place, such as nn.ReLU(inplace=False), or change "
            "output.clone()"
        ) from error
