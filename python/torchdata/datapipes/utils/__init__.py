"""Helpers for pipes and their users."""
