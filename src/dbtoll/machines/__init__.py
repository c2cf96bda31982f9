"""What any machine of ours is made of: the agent's end of the line, control groups, roots, networks, settings."""
