"""Groups of child processes that run a program: links, commands, and replacements of exited processes. Private."""
