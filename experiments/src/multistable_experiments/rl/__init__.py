"""Memory for agents: the T-maze, POPGym, and what they say about cells. Needs the extra ``rl``."""
