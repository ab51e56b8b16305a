"""What the stages ask of InterCodeSQL; see `coevolve.envs.domains.Domain`."""

from coevolve.envs.intercode_sql.env import pool
from coevolve.envs.intercode_sql.experts import experts
from coevolve.envs.intercode_sql.tasks import select

__all__ = ["experts", "pool", "select"]
