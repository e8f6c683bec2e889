"""Groups of child processes that run a program, receive commands, and are replaced if they exit."""
