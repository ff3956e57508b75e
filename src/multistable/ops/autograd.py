"""``torch.autograd.Function`` with a type for ``apply``, which torch leaves untyped."""

from typing import TYPE_CHECKING, Any

import torch

__all__ = ["Function"]


class Function(torch.autograd.Function):
    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *args: Any, **kwargs: Any) -> Any: ...
