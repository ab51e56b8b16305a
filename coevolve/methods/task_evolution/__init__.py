"""Agent-data mutual evolution (arXiv 2604.15840): signals in training episodes, exploration, a growing task pool."""
