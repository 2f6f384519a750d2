"""A checklist to start from."""

from __future__ import annotations

__all__ = ["TEMPLATE"]

TEMPLATE = """\
# What a model must keep to be accepted: singularbayes accept FOLDER --require THIS_FILE
# Exit code 0: accepted. 1: an item failed, or was not measured and is not optional. 2: this file is wrong.
#
# An item:   name = { at_least = 0.9, at_most = 1.0, at = "low", optional = true }
#   at_least, at_most   bounds, one or both
#   at                  what is held to them: "value" (default), or the "low" or "high" end of its interval
#   optional            may stay unmeasured (default false)
# Names of metrics are those that `singularbayes evaluate FOLDER` prints. Delete what you do not need.

[test]                                  # any metric of the test set
accuracy = { at_least = 0.90, at = "low" }
expected_calibration_error = { at_most = 0.05 }
# rmse, crps, interval_coverage = { at_least = 0.92, at_most = 0.98 } ... for regression

[ood.near]                              # telling an OOD set from test (choose a score), or its own metrics
auroc = { at_least = 0.70 }
# fpr95 = { at_most = 0.5, score = "mutual_information" }

[ood.far]
auroc = { at_least = 0.90, at = "low" }

[criteria.far]                          # A ranking, B scale, C mass: "good", or bounds as above
A = "good"
B = "good"
C = { status = "good", optional = true }  # needs labels there

[criteria.test]                         # test itself has A (uncertainty against error) and C
C = "good"

[measurement]                           # how latency and memory are measured, in a process of their own
batch_size = 64
draws = 64
repeats = 20
threads = 1

[cost]
latency_ms = { at_most = 100 }          # median of one prediction
memory_mb = { at_most = 1000 }          # peak of the process, library included, in 10^6 bytes
parameters = { at_most = 100000 }       # numbers that the posterior stores
"""
