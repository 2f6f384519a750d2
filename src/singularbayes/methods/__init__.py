"""Every inference method, one file each. A method is added by its file and one line here."""

from .deep_ensemble import DeepEnsemble
from .map import MAP
from .mc_dropout import MCDropout
from .mean_field import MeanField

ALL = (MAP, DeepEnsemble, MCDropout, MeanField)

__all__ = ["ALL", "MAP", "DeepEnsemble", "MCDropout", "MeanField"]
