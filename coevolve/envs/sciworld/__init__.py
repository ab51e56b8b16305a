"""ScienceWorld (scienceworld 1.2.3): the simulator, its tasks and its own solutions."""
