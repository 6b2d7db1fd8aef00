"""Property 8: a patched model trains like a stock one, in every way that people train."""

import copy
import functools
from typing import Any

import pytest
import torch
from pairs import (
    CAUSAL,
    build,
    close,
    draw_position_parameters,
    example,
    is_patched,
    pairs,
    patched,
    position_parameters,
    tokens,
)
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import hf_posswap as hp


def loss(model: Any, ids: Tensor) -> Tensor:
    return model(ids, labels=ids).loss


def gradients(model: Any, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss(model, ids).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pairs()
def test_gradients_agree_with_finite_differences(pair: Any) -> None:
    model, ids = in_float64(patched(pair)), tokens(1, 12)
    own = position_parameters(model)
    assert all(p.requires_grad for p in own.values())
    weights = torch.randn_like(model(ids).logits)
    step = 1e-4
    for parameter in [*own.values(), model.get_input_embeddings().weight]:
        direction = torch.randn_like(parameter)
        (gradient,) = torch.autograd.grad((model(ids).logits * weights).sum(), [parameter])
        values = {}
        with torch.no_grad():
            for offset in (-2, -1, 1, 2):
                parameter.add_(direction * offset * step)
                values[offset] = (model(ids).logits * weights).sum()
                parameter.sub_(direction * offset * step)
        # Fourth order in the step.
        slope = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * step)
        close(slope, (gradient * direction).sum(), 1e-6)


def in_float64(model: Any) -> Any:
    """All of it: RMSNorm computes in float32 whatever the model's dtype, too coarse for small differences."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = functools.partial(rms_norm, module)
    return model.double()


def rms_norm(module: Any, x: Tensor) -> Tensor:
    return module.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + module.variance_epsilon)


def checkpoint(model: Any, **options: Any) -> None:
    """By the name that this version of transformers has for it."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(options)


@pytest.mark.parametrize("reentrant", [True, False])
@pairs()
def test_gradient_checkpointing_changes_nothing(pair: Any, reentrant: bool) -> None:
    """Two passes before either goes backward, as in preference training: a stashed position would be the wrong one."""
    overrides = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0} if pair[0] == "gpt2" else {}
    if pair[0].startswith("bert"):
        overrides = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = patched(pair, **overrides).train()
    first, second = tokens(), tokens(1, 11)

    def both() -> dict[str, Tensor]:
        model.zero_grad()
        one, two = loss(model, first), loss(model, second)
        (one + two).backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    expected = both()
    checkpoint(model, use_reentrant=reentrant)
    found = both()
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert (gradient - expected[name]).norm() <= 1e-4 * expected[name].norm() + 1e-6, name


@pairs()
def test_one_optimizer_step_moves_positions_and_keeps_the_mode(pair: Any) -> None:
    kind, scheme = pair
    model = hp.patch(build(kind).train(), example(scheme))
    assert all(m.training for m in model.modules())
    own = {k: v.detach().clone() for k, v in position_parameters(model).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loss(model, tokens()).backward()
    optimizer.step()
    assert all(not torch.equal(v, own[k]) for k, v in position_parameters(model).items())


@pairs()
def test_new_parameters_have_the_models_dtype_and_leave_random_state_alone(pair: Any) -> None:
    model = build(pair[0]).to(torch.bfloat16)
    state = torch.get_rng_state()
    hp.patch(model, example(pair[1]))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


def check_compiled(pair: Any) -> None:
    """Forward with and without padding, and backward. Labels are left out: stock GPT-2 logs, and so breaks, on them."""
    torch._dynamo.reset()
    model, ids = patched(pair), tokens()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    found, whole = (m(ids, attention_mask=mask, use_cache=False).logits for m in (compiled, model))
    close(found[mask.bool()], whole[mask.bool()], 1e-5)
    slopes = []
    for one in (compiled, model):
        model.zero_grad()
        one(ids, use_cache=False).logits.square().mean().backward()
        slopes.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for name, gradient in slopes[0].items():
        assert (gradient - slopes[1][name]).norm() <= 1e-4 * slopes[1][name].norm() + 1e-6, name


@pytest.mark.slow
@pairs()
def test_every_pair_compiles_without_a_graph_break(pair: Any) -> None:
    check_compiled(pair)


@pairs(("llama", "gpt2", "bert"), name=("sinusoidal", "yarn", "t5", "xpos"))
def test_each_kind_compiles_without_a_graph_break(pair: Any) -> None:
    check_compiled(pair)


@pairs(tuple(k for k in CAUSAL if k != "bert-decoder"))
def test_lora_trains_merges_and_comes_back(pair: Any, tmp_path: Any) -> None:
    peft = pytest.importorskip("peft")
    build(pair[0]).save_pretrained(tmp_path / "base")
    model, ids = hp.patch(AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval(), example(pair[1])), tokens()
    draw_position_parameters(model)
    twin = copy.deepcopy(model)
    options = {"r": 2, "task_type": "CAUSAL_LM", "fan_in_fan_out": pair[0] == "gpt2"}
    if model.config.model_type not in peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        options["target_modules"] = "all-linear"  # no default of PEFT's for this model type
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        loss(adapted, ids).backward()
        optimizer.step()
    trained = adapted.eval()(ids).logits
    assert (trained - twin(ids).logits).abs().max() > 1e-4
    adapted.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(twin, tmp_path / "adapter").eval()
    close(again(ids).logits, trained, 1e-6)
    merged = adapted.merge_and_unload()
    close(merged(ids).logits, trained, 1e-5)
    assert hp.scheme_of(merged) == hp.scheme_of(patched(pair))


@pairs(("gpt2",))
@torch.no_grad()
def test_inputs_with_several_choices(pair: Any) -> None:
    """GPT-2 flattens `[B, choices, L]`."""
    base, ids = patched(pair).base_model, tokens(6).view(2, 3, -1)
    flat = base(ids.flatten(0, 1)).last_hidden_state
    close(base(ids).last_hidden_state.flatten(0, 1), flat, 1e-6)
    close(base(ids[:, :1]).last_hidden_state[:, 0], base(ids[:, 0]).last_hidden_state, 1e-6)


@pairs(("llama", "gpt2", "bert"))
def test_trainer_and_accelerate_take_it(pair: Any, tmp_path: Any) -> None:
    from transformers import Trainer, TrainingArguments

    model = patched(pair)
    data = [{"input_ids": row, "labels": row} for row in tokens(4)]
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="steps",
        save_steps=2,
        dataloader_pin_memory=False,
    )
    twin = copy.deepcopy(model)
    Trainer(model=model, args=arguments, train_dataset=data).train()
    resumed = Trainer(model=twin, args=arguments, train_dataset=data)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    assert any(not torch.equal(p, before[n]) for n, p in model.named_parameters())
    if is_patched(model):
        auto = type(model)
        auto = AutoModelForMaskedLM if pair[0] == "bert" else AutoModelForCausalLM
        loaded = hp.load(tmp_path / "out" / "checkpoint-2", auto_class=auto).eval()
        ids = tokens()
        assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view:UserWarning")
@pairs(("llama", "gpt2", "bert"), name=("learned", "rope", "t5", "xpos"))
def test_fsdp_shards_it(pair: Any) -> None:
    """One process on gloo: the wrapping, the hooks and the gradients, not the sharding, are what is ours."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model, ids = patched(pair), tokens()
    draw_position_parameters(model)
    expected, plain = loss(model, ids).detach(), gradients(model, ids)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    for layer in model.base_model.hf_posswap.family.decoder_layers(model.base_model) if is_patched(model) else []:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    sharded = loss(model, ids)
    torch.testing.assert_close(sharded.detach(), expected)
    model.zero_grad()
    sharded.backward()
    for name, parameter in model.named_parameters():
        if name in plain:
            torch.testing.assert_close(parameter.grad.full_tensor(), plain[name], rtol=1e-4, atol=1e-6, msg=name)


def test_wrapping_order_is_in_the_refusal() -> None:
    with pytest.raises(hp.FamilyError, match=r"patch, get_peft_model, torch\.compile, DDP or FSDP, optimizer"):
        hp.patch(nn.DataParallel(build("gpt2")), hp.ALiBi())
