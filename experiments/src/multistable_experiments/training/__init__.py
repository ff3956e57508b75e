"""Training: one loop for every task and layer; a killed run resumes to the same bits."""
