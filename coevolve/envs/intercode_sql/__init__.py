"""InterCodeSQL: questions over twenty databases, answered on a real MySQL server that the kit starts."""
