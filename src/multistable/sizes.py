"""Refuse sizes that are not counts."""

__all__ = ["check_sizes"]


def check_sizes(at_least: int, **sizes: int) -> None:
    """Raise unless every size is an integer of at least ``at_least``; the error names the first that is not."""
    wanted = "a positive integer" if at_least == 1 else f"an integer of at least {at_least}"
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < at_least:
            raise ValueError(f"{name} must be {wanted}, got {size!r}")
