"""Corruptions of images, series and tables at severity 0 (unchanged) to 5; one seed, one damage."""

from .corruption import SEVERITIES, Corruption
from .images import (
    Blur,
    Brightness,
    Compression,
    Contrast,
    ImpulseNoise,
    MotionBlur,
    Occlusion,
    Pixelate,
    PixelNoise,
    Rotation,
    ShotNoise,
)
from .pixels import Pixels
from .series import Drift, Gaps, SensorNoise, Spikes, StuckSensor, TimeWarp
from .tables import FeatureNoise, MissingFeatures, PermutedFeatures, Translation, WrongUnits

__all__ = [
    "SEVERITIES",
    "Blur",
    "Brightness",
    "Compression",
    "Contrast",
    "Corruption",
    "Drift",
    "FeatureNoise",
    "Gaps",
    "ImpulseNoise",
    "MissingFeatures",
    "MotionBlur",
    "Occlusion",
    "PermutedFeatures",
    "PixelNoise",
    "Pixelate",
    "Pixels",
    "Rotation",
    "SensorNoise",
    "ShotNoise",
    "Spikes",
    "StuckSensor",
    "TimeWarp",
    "Translation",
    "WrongUnits",
]
