"""Tasks: data, loss and metric."""
