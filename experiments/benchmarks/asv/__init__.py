"""Benchmarks of the library on a CPU over time, for asv: CONTRIBUTING.md says how."""
