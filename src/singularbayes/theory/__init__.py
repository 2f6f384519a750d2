"""The theory of singular posteriors, computed."""

from ..bounded_losses import BoundedCrossEntropy, ClippedLoss, ZeroOne
from ..bounds import (
    Catoni,
    EmpiricalBernstein,
    KLInverse,
    Lambda,
    McAllester,
    Quadratic,
    RelativeEntropy,
    kl_inverse,
)
from .alignment import Alignment, covariance_effective_rank, gradient_alignment
from .canonical import canonical
from .certificate import Certificate, Condition
from .certify import certify
from .chain_bound import NetworkBound, network_bound
from .complexity import GaussianComplexity, gaussian_complexity
from .correlation import weight_correlation, weight_covariance
from .eckart_young import EckartYoungBound, eckart_young_bound
from .factor_beliefs import FactorBelief, LowRankWeight, factor_beliefs, low_rank_weights
from .halving import ByCertificate, ByValidation
from .lipschitz import (
    AbsoluteError,
    BinaryCrossEntropy,
    Hinge,
    LipschitzLoss,
    SoftmaxCrossEntropy,
    SquaredError,
)
from .pac_bayes import pac_bayes_kl
from .pruning import Pruned, component_relevance, prune
from .select_rank import ByBound, ByEnergy, RankChoice, RankRule, select_rank
from .singularity import Singularity, singularity
from .spectra import (
    Spectra,
    Spectrum,
    effective_rank,
    singular_values,
    singular_values_of_tensors,
    stable_rank,
)

__all__ = [
    "AbsoluteError",
    "Alignment",
    "BinaryCrossEntropy",
    "BoundedCrossEntropy",
    "ByBound",
    "ByCertificate",
    "ByEnergy",
    "ByValidation",
    "Catoni",
    "Certificate",
    "ClippedLoss",
    "Condition",
    "EckartYoungBound",
    "EmpiricalBernstein",
    "FactorBelief",
    "GaussianComplexity",
    "Hinge",
    "KLInverse",
    "Lambda",
    "LipschitzLoss",
    "LowRankWeight",
    "McAllester",
    "NetworkBound",
    "Pruned",
    "Quadratic",
    "RankChoice",
    "RankRule",
    "RelativeEntropy",
    "Singularity",
    "SoftmaxCrossEntropy",
    "Spectra",
    "Spectrum",
    "SquaredError",
    "ZeroOne",
    "canonical",
    "certify",
    "component_relevance",
    "covariance_effective_rank",
    "eckart_young_bound",
    "effective_rank",
    "factor_beliefs",
    "gaussian_complexity",
    "gradient_alignment",
    "kl_inverse",
    "low_rank_weights",
    "network_bound",
    "pac_bayes_kl",
    "prune",
    "select_rank",
    "singular_values",
    "singular_values_of_tensors",
    "singularity",
    "stable_rank",
    "weight_correlation",
    "weight_covariance",
]
