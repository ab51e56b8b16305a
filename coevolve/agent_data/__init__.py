"""The second paper, agent-data mutual evolution (arXiv 2604.15840): agents on a pool of tasks that grows."""
