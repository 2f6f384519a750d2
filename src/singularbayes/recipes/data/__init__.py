"""Data of the built-in recipes: each module loads, divides and standardises one problem.

>>> from singularbayes.recipes.data import sine
>>> sine.load(n_train=20).train[0].shape
(20, 1)
"""

from singularbayes.recipes.data import beijing, digits, icu, images, sine, uci
from singularbayes.recipes.data.splits import Splits, Units

__all__ = ["Splits", "Units", "beijing", "digits", "icu", "images", "sine", "uci"]
