"""``python -m multistable_experiments`` runs the command ``multistable``."""

from multistable_experiments.cli import main

if __name__ == "__main__":
    main()
