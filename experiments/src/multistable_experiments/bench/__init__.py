"""Benchmarks, one module for each kind of device: ``rows()`` yields what was measured, ``report.py`` shows it."""
