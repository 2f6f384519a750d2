"""Samplers against targets whose expectations are known."""
