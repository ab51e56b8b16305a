"""InterCodeSQL: questions over twenty databases, answered on a real MySQL server that the kit runs by itself."""
