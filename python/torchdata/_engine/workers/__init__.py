"""Groups of child processes that run a program: links, commands, others in the places of exited ones. Private."""
