"""All backends have the signatures of ``ops/portable.py``, so that they are interchangeable."""

import inspect

import pytest

from backends import FAST
from multistable import ops
from multistable.ops import dispatch, portable, reference

OPERATIONS = portable.__all__


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_backends_share_signatures(operation, backend):
    module = dispatch.load(backend)
    assert set(module.__all__) == set(OPERATIONS)
    assert inspect.signature(getattr(module, operation)) == inspect.signature(getattr(portable, operation))


@pytest.mark.parametrize("scan", ["bmru_scan", "latch_scan", "linear_scan", "map_adjoint", "map_scan"])
def test_reference_has_the_public_signature_without_backend(scan):
    public, defined = inspect.signature(getattr(ops, scan)), inspect.signature(getattr(reference, scan))
    parameters = [p for name, p in public.parameters.items() if name != "backend"]
    assert public.parameters["backend"].default == "auto"
    assert public.replace(parameters=parameters) == defined


def test_every_backend_under_test_is_known():
    assert set(FAST) <= set(dispatch.BACKENDS)


@pytest.mark.parametrize("name", ops.__all__)
def test_public_names_exist(name):
    assert hasattr(ops, name)
