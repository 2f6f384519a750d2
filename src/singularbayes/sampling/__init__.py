"""Samplers of a log density: chains that run side by side as rows ``(C, d)``; they know no networks."""

from .sampler import Info, Point, Sampler, Target

__all__ = ["Info", "Point", "Sampler", "Target"]
