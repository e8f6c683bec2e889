"""The state of pipes: its declaration, how iterations begin and resume, and the layout of saved states."""
