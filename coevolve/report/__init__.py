"""The paper's tables and figures, made from evaluation records."""
