"""The ELBO in float64, dense, from torch.distributions: what every example's loss is held against.

It takes nothing from the code under test but the parameters and the noise's place (seed, rank, number).
"""

import copy

import torch
import torch.distributions as td
from torch import Tensor, nn
from torch.func import functional_call

import singularbayes as sb
from singularbayes.random import generator


def normal_kl(mean: Tensor, std: Tensor, prior_std: float) -> float:
    """Closed KL of independent Gaussians to N(0, prior_std^2), a sum in nats."""
    q = td.Normal(mean.detach().double(), std.detach().double())
    p = td.Normal(torch.zeros_like(q.loc), torch.full_like(q.loc, prior_std))
    return td.kl_divergence(q, p).sum().item()


def mean_nll(outputs: Tensor, y: Tensor, likelihood) -> float:
    """Mean over the batch, summed over the event."""
    if isinstance(likelihood, sb.Categorical):
        return -td.Categorical(logits=outputs).log_prob(y).mean().item()
    noise = likelihood.noise
    return (
        -td.Normal(outputs.reshape(y.shape), noise)
        .log_prob(y.double())
        .flatten(1 if y.dim() > 1 else 0)
        .view(len(y), -1)
        .sum(1)
        .mean()
        .item()
    )


def outputs_at(model: sb.Model, belief: Tensor, point: Tensor, x) -> Tensor:
    """The network's outputs in float64 at one row of drawn weights."""
    network: nn.Module = copy.deepcopy(model.network).double().train()
    row = torch.cat([belief, point]).double()
    slots = model.layout.of_kind("belief", "point")
    views = {alias: row[s.start : s.stop].view(s.shape) for s in slots for alias in s.aliases}
    with torch.no_grad():
        if isinstance(x, dict):
            outputs = functional_call(network, views, (), x, tie_weights=False)
        else:
            outputs = functional_call(network, views, (x.double(),), tie_weights=False)
    return outputs.logits if hasattr(outputs, "logits") else outputs


def module_loss(module: sb.VariationalModule, x, y: Tensor, number: int, rank: int = 0) -> float:
    """``mean batch NLL + (T / N) KL`` of a module at draw ``number``; prior Normal everywhere."""
    mean, std = module.mean.detach(), nn.functional.softplus(module.rho.detach().double())
    noise = torch.empty_like(mean).normal_(generator=generator(module.seed, "noise", rank, number))
    point = mean.new_zeros(0) if module.point is None else module.point.detach()
    learned = module.model.layout.of_kind("likelihood")
    likelihood = module.model.likelihood
    if learned:
        likelihood = sb.Gaussian(noise=point[-1].exp().item())
        point = point[:-1]
    outputs = outputs_at(module.model, mean.double() + std * noise.double(), point, x)
    (prior,) = {prior for _, prior in module.model.prior_blocks}
    kl = normal_kl(mean, std, prior.std)
    return mean_nll(outputs, y, likelihood) + module.temperature / module.num_data * kl


def first_epoch(model: sb.Model, posterior: sb.Posterior, x, y: Tensor) -> dict[str, float]:
    """What ``MeanField(epochs=1, batch_size >= N)`` must report: NLL at its one draw, and the objective."""
    settings, layout = posterior.info["settings"], model.layout
    start = layout.flatten(model.network, model.likelihood.parameters).double()
    std = torch.empty(layout.belief, dtype=torch.float64)
    parts = {s.name: start[s.start : s.stop] for s in layout.of_kind("belief", "point")}
    for slot in layout.of_kind("belief"):
        own = parts[slot.name].square().mean().sqrt()
        if own == 0:
            module = slot.name.rpartition(".")[0]
            own = (
                max(p.square().mean().sqrt() for n, p in parts.items() if n.rpartition(".")[0] == module)
                or 1.0
            )
        std[slot.start : slot.stop] = settings["initial_std"] * own
    noise = torch.empty(layout.belief).normal_(generator=generator(0, "noise", 0)).double()
    outputs = outputs_at(
        model, start[: layout.belief] + std * noise, start[layout.belief : layout.trained], x
    )
    nll = mean_nll(outputs, y, model.likelihood)
    (prior,) = {prior for _, prior in model.prior_blocks}
    final = posterior.distribution
    kl = normal_kl(final.mean[: layout.belief], final.std[: layout.belief], prior.std)
    return {"nll": nll, "objective": nll + settings["temperature"] / len(y) * kl}
