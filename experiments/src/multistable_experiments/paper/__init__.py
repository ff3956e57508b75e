"""The paper: its figures, and the measurements behind them."""
