"""Templates of the kit's own in the layout of verl-agent's file, which tests do not have."""

FIRST = "\nShop: {task_description}\nSee: {current_observation}\nDo:\n[\n{available_actions}\n]\n"
LATER = (
    "\nShop: {task_description}\n{step_count} taken, the last {history_length}: {action_history}\n"
    "Step {current_step}, see: {current_observation}\nDo:\n[\n{available_actions}\n]\n"
)
