"""Imports the package before pytest takes a file of it by itself, which would run that file a second time."""

import singularbayes  # noqa: F401
