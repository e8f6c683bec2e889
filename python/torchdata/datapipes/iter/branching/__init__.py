"""Pipes that split one pipe into several, or combine several into one."""
