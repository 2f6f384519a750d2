"""Fields by name: those of the settings that a method holds, and objects that no text can stand for."""

import pytest
from torch import nn

import singularbayes as sb
from singularbayes.recipes.overrides import check_overrides, flag_fields, overridden
from singularbayes.recipes.recipe import Plan


def plan(method) -> Plan:
    return Plan(network=lambda: nn.Linear(2, 2), prior=sb.Normal(), method=method)


def test_the_run_of_a_subspace_takes_the_loops_fields():
    changed = overridden(plan(sb.Subspace()), {"epochs": 400, "prior_std": 3.0}).method
    assert (changed.trajectory.epochs, changed.trajectory.start_epoch, changed.prior_std) == (400, 161, 3.0)
    assert changed.basis == sb.PCA()
    assert {"epochs", "collect_rate", "prior_std"} < set(flag_fields(sb.Subspace()))


def test_networks_that_are_given_have_no_fields():
    method = sb.Subspace(trajectory=[nn.Linear(2, 2)] * 12, basis=sb.PCA(2))
    assert flag_fields(method) == ["prior_std"]
    with pytest.raises(ValueError, match="no chosen method has a field 'epochs'"):
        check_overrides({"subspace": plan(method)}, {"epochs": 3})


def test_a_method_at_any_depth_is_reached_and_has_the_validation_set_that_it_asks_for():
    after = sb.Pretrained(point=sb.MAP(), member=sb.LaplaceApproximation())
    for method in (after, sb.DeepEnsemble(member=after), sb.Mixture(members=(after, sb.MeanField()))):
        own = plan(method)
        assert "patience" in flag_fields(method)
        assert not own.needs_validation
        check_overrides({"own": own}, {"patience": 3})
        assert overridden(own, {"patience": 3}).needs_validation
    assert plan(sb.Mixture(members=(sb.MAP(), sb.MeanField()), weights=sb.Stacked())).needs_validation
    stops = sb.DeepEnsemble(member=sb.Pretrained(point=sb.MAP(patience=2), member=sb.SWAG()))
    with pytest.raises(ValueError, match="joins_validation=True"):
        Plan(network=lambda: nn.Linear(2, 2), prior=sb.Normal(), joins_validation=True, method=stops)


@pytest.mark.parametrize("field", ["modes", "curve", "weights"])
def test_objects_are_no_flags(field):
    assert field not in flag_fields(sb.ModeCurve())
    with pytest.raises(ValueError, match=f"no chosen method has a field '{field}'"):
        check_overrides({"curve": plan(sb.ModeCurve())}, {field: "x"})
