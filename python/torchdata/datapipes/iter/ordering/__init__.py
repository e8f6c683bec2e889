"""Which items come when, how often, together with which, and in which process."""
