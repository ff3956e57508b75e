"""Benchmarks: one module per kind of device with ``rows()``, the measurements; ``report.py`` runs and shows them."""
