"""Decides who is answered, and notes requests."""
