"""The experiments of the paper, and the command ``multistable``: tasks, training, claims, figures, benchmarks."""
