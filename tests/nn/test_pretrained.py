"""Hugging Face models, from small random configurations: nothing is fetched."""

import copy
import pickle

import pytest
import torch

import singularbayes as sb

transformers = pytest.importorskip("transformers", reason="Hugging Face models need the extra: text")
pytestmark = pytest.mark.filterwarnings("ignore:.*saves no parameters", "ignore::DeprecationWarning")

V = 40
IDS = torch.randint(0, V, (2, 6), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def bert():
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=8)  # fmt: skip
    return transformers.BertForMaskedLM(config).eval()


def gpt2():
    config = transformers.GPT2Config(vocab_size=V, n_embd=16, n_layer=1, n_head=2, n_positions=8,
                                     bos_token_id=1, eos_token_id=2)  # fmt: skip
    return transformers.GPT2LMHeadModel(config).eval()


def t5():
    config = transformers.T5Config(
        vocab_size=V, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_decoder_layers=1, num_heads=2,
        decoder_start_token_id=0)  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


MODELS = [bert, gpt2, t5]


def logits(model) -> torch.Tensor:
    extra = {"decoder_input_ids": IDS} if "T5" in type(model).__name__ else {}
    return model(input_ids=IDS, **extra).logits


def ties(model) -> set[frozenset[str]]:
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(each) for each in names.values() if len(each) > 1}


@pytest.mark.parametrize("make", MODELS)
def test_a_model_at_full_rank_is_the_same_function_and_untouched(make):
    model = make()
    before, modules = copy.deepcopy(model.state_dict()), list(model.modules())
    low = sb.factorize(model, 16, init="svd")
    torch.testing.assert_close(logits(low), logits(model), rtol=1e-4, atol=1e-5)
    assert list(model.modules()) == modules
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model._tied_weights_keys == type(model)._tied_weights_keys
    listed = [c for c in low.factorization.changes if not c.ranks]
    kept = {c.layer for c in listed if c.name.rpartition(".")[2] != "relative_attention_bias"}
    assert kept <= {"LayerNorm", "T5LayerNorm", "Parameter"}


@pytest.mark.parametrize("make", MODELS)
def test_ties_are_ties_of_the_factors_and_the_counts_are_the_model_s(make):
    model = make()
    low = sb.factorize(model, 3)
    assert low.factorization.before == sum(p.numel() for p in model.parameters())
    assert low.factorization.after == sum(p.numel() for p in low.parameters())
    expected = set()
    for group in ties(model):
        if any(name.endswith("weight") for name in group):
            expected |= {frozenset(name.removesuffix("weight") + x for name in group) for x in "AB"}
        else:
            expected.add(group)
    assert ties(low) == expected
    logits(low).square().sum().backward()
    unused = [n for n, p in low.named_parameters() if p.grad is None]
    assert unused == []


def test_conv1d_of_gpt2_becomes_a_low_rank_layer_the_right_way_round():
    # converters that look for nn.Linear alone leave every block of GPT-2 dense and say nothing
    model = gpt2()
    low = sb.factorize(model, 4, init="svd")
    stock, new = model.transformer.h[0].mlp.c_fc, low.transformer.h[0].mlp.c_fc
    assert isinstance(new, sb.nn.LowRankLinear)
    assert (new.A.shape, new.B.shape) == ((64, 4), (16, 4))
    assert torch.equal(new.bias, stock.bias)
    u, s, vh = torch.linalg.svd(stock.weight.detach().double())
    torch.testing.assert_close(new.weight, ((u[:, :4] * s[:4]) @ vh[:4]).float(), rtol=1e-4, atol=1e-6)
    assert "Conv1D" in {c.layer for c in low.factorization.changes if c.ranks}
    back = new.to_layer()
    assert type(back) is type(stock)
    torch.testing.assert_close(back(torch.ones(2, 16)), new(torch.ones(2, 16)))


def test_the_relative_attention_bias_of_t5_stays():
    low = sb.factorize(t5(), 2)
    listed = {c.name: c.reason for c in low.factorization.changes}
    name = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    assert listed[name].startswith("a bias of attention scores")


@pytest.mark.parametrize("make", MODELS)
def test_the_model_s_own_machinery_of_ties_goes_on_working(make, tmp_path):
    model = make()
    low = sb.factorize(model, 3)
    before, tied = logits(low), ties(low)
    low.tie_weights()
    assert ties(low) == tied
    assert torch.equal(logits(low), before)
    low.save_pretrained(tmp_path)  # raises on shared tensors that it does not know of
    assert any(tmp_path.glob("*.safetensors"))
    for again in (copy.deepcopy(low), pickle.loads(pickle.dumps(low))):
        assert ties(again) == tied
        assert torch.equal(logits(again), before)


@pytest.mark.parametrize("make", MODELS)
def test_a_merged_model_loads_with_from_pretrained(make, tmp_path):
    model = make()
    low = sb.factorize(model, 3)
    back = sb.merge(low)
    assert ties(back) == ties(model)
    assert back.state_dict().keys() == model.state_dict().keys()
    assert back._tied_weights_keys == type(model)._tied_weights_keys
    assert back.all_tied_weights_keys == model.all_tied_weights_keys
    assert "_tied_weights_keys" in vars(low)
    assert [type(m) for m in back.modules()] == [type(m) for m in model.modules()]
    back.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(again), logits(low), rtol=1e-4, atol=1e-5)


def test_an_untied_configuration_stays_untied():
    model = gpt2()
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    model = transformers.GPT2LMHeadModel(config)
    low = sb.factorize(model, 3)
    assert ties(low) == ties(model) == set()
    assert low.lm_head.A is not low.transformer.wte.A
    low.tie_weights()
    assert ties(low) == set()


def test_a_belief_over_the_factors_of_gpt2_can_be_trained_and_merged():
    model = gpt2()
    low = sb.factorize(model, 3)
    x = {"input_ids": IDS.repeat(4, 1)}

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = low

        def forward(self, input_ids):
            return self.model(input_ids=input_ids).logits[:, -1]

    fitted = sb.MeanField(epochs=1).fit(sb.Model(Last(), sb.Categorical()), [(x, torch.arange(8) % V)])
    row = fitted.draw(2, seed=1)[1]
    expected = fitted.functions(row.unsqueeze(0), x)[0]
    torch.testing.assert_close(sb.merge(fitted, row)(**x), expected, rtol=1e-5, atol=1e-5)
