"""Refuse sizes that are no counts."""

__all__ = ["check_sizes"]


def check_sizes(at_least: int, **sizes: int) -> None:
    """Each size must be an integer of at least so much; the error names the first that is not."""
    wanted = "a positive integer" if at_least == 1 else f"an integer of at least {at_least}"
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < at_least:
            raise ValueError(f"{name} must be {wanted}, got {size!r}")
