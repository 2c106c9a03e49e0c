"""The suite must catch kernels that claim what they do not do: one lie for each law."""

import inspect
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from deepinfer_core import hookimpl
from deepinfer_core.ops import OP_SPECS
from deepinfer_core.ops.reference import act, attn, gemm, kv, norm, quant
from deepinfer_core.plugin_api import Caps, KernelSpec, PluginInfo, Reason
from deepinfer_core.plugins import PluginHost
from deepinfer_core.testing.run import run_conformance
from deepinfer_core.testing.subject import make_subject

LEVELS = ("L0", "L1", "L2")
liars = types.ModuleType("liars")


def lie(function):
    """Make a kernel importable under its name."""
    setattr(liars, function.__name__, function)
    return function


class Plugin:
    def __init__(self, kernels):
        self.kernels = kernels

    @hookimpl
    def deepinfer_plugin_info(self):
        return PluginInfo("liar", "1", "Nobody", api=">=1.0")

    @hookimpl
    def deepinfer_kernels(self):
        return self.kernels


@pytest.fixture
def failures(monkeypatch):
    """Check one kernel and give the names of the checks that failed, with their messages."""
    monkeypatch.setitem(sys.modules, "liars", liars)

    def check(op, function, *features, dtypes=("float32",), schemes=(), dims=None, **fields):
        levels = fields.pop("levels", LEVELS)
        kernel = KernelSpec(
            op=f"{op}@1",
            provider="liar.kernel",
            target=f"liars:{function.__name__}",
            caps=Caps(
                dtypes=dtypes, schemes=schemes, features=frozenset(features), dims=dims or {}
            ),
            **fields,
        )
        host = PluginHost(load_entry_points=False)
        record = host.register(Plugin([kernel]), name="liar")
        report = run_conformance(make_subject(host, record), levels=levels)
        assert report.ok is not bool(report.failures)
        return {f"{r.level}-{r.name}": r.message for r in report.failures}

    return check


@lie
def honest_rms(x, weight, eps, residual=None):
    return norm.rms(x, weight, eps, residual)


@lie
def honest_paged(
    q, k_cache, v_cache, meta, scale, window=None, sinks=None, softcap=None, plan=None,
    return_lse=False,
):  # fmt: skip
    extras = {"window": window, "sinks": sinks, "softcap": softcap, "return_lse": return_lse}
    return attn.paged(q, k_cache, v_cache, meta, scale, plan=plan, **extras)


def test_an_honest_kernel_passes(failures):
    laws = ("deterministic", "empty_ok", "graph_safe", "batch_invariant")
    dtypes = ("float32", "bfloat16", "float16")
    assert failures("norm.rms", honest_rms, "residual", *laws, dtypes=dtypes) == {}


def test_an_honest_kernel_with_a_plan_and_few_sizes_passes(failures):
    found = failures(
        "attn.paged",
        honest_paged,
        *("varlen", "window", "lse_out", "deterministic", "empty_ok"),
        plan="deepinfer_core.ops.reference.paged_plan:plan_paged",
        dims={"head_dim": (128,), "block_size": (32,)},
    )
    assert found == {}


@lie
def slightly_off(x, weight, eps, residual=None):
    y, r = norm.rms(x, weight, eps, residual)
    return y * 1.0003, r


def test_numerics_off_by_little(failures):
    assert {name[:2] for name in failures("norm.rms", slightly_off)} == {"L1"}


@lie
def returns_the_old_residual(x, weight, eps, residual=None):
    return norm.rms(x, weight, eps, residual)[0], residual


def test_second_output_wrong(failures):
    found = failures("norm.rms", returns_the_old_residual, "residual", dtypes=("bfloat16",))
    assert found and all("residual" in name for name in found)
    assert all("output 1" in message for message in found.values())


@lie
def ignores_window(
    q, k_cache, v_cache, meta, scale, window=None, sinks=None, softcap=None, plan=None,
    return_lse=False,
):  # fmt: skip
    return attn.paged(q, k_cache, v_cache, meta, scale, None, sinks, softcap)


def test_window_claimed_but_ignored(failures):
    found = failures("attn.paged", ignores_window, "varlen", "window")
    assert found and all("window" in name for name in found)
    assert "L1-decode-window-64x9x3x16" in found and "L1-decode-plain-64x9x3x16" not in found


@lie
def masks_softly(
    q, k_cache, v_cache, meta, scale, window=None, sinks=None, softcap=None, plan=None,
    return_lse=False,
):  # fmt: skip
    return attn.paged(q, k_cache, v_cache, past_the_end(meta), scale)


def past_the_end(meta):
    """A batch whose queries see one key too many: the garbage behind the sequence."""
    fields = {name: getattr(meta, name) for name in meta.__dataclass_fields__}
    fields["positions"] = meta.positions + 1
    fields["seq_len_bounds"] = [bound + 1 for bound in meta.seq_len_bounds]
    return type(meta)(**{**fields, "plans": {}})


def test_garbage_past_the_end_is_seen(failures):
    assert "L1-one-token-plain-64x9x3x16" in failures("attn.paged", masks_softly)


@lie
def reads_every_block(
    q, k_cache, v_cache, meta, scale, window=None, sinks=None, softcap=None, plan=None,
    return_lse=False,
):  # fmt: skip
    o = attn.paged(q, k_cache, v_cache, meta, scale)
    return o + 0 * v_cache.sum().to(o.dtype)


def test_blocks_of_others_are_read(failures):
    found = failures("attn.paged", reads_every_block, levels=("L1",))
    assert "nan" in found["L1-one-token-plain-64x9x3x16"]


@lie
def counts_in_32_bits(k, v, k_cache, v_cache, slot_mapping, plan=None):
    # What a kernel with 32-bit offsets does: the element's offset wraps around.
    size = k_cache.shape[1]
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, size)
            elements = block * k_cache.stride(0)
            if elements >= 2**31:
                block = (elements - 2**31) // k_cache.stride(0)
            k_cache[block, offset], v_cache[block, offset] = k[row], v[row]


def test_offsets_that_wrap(failures):
    found = failures("kv.store", counts_in_32_bits, "strided_cache", dtypes=("float16",))
    assert list(found) == ["L2-far"]


@lie
def writes_padding(k, v, k_cache, v_cache, slot_mapping, plan=None):
    kv.store(k, v, k_cache, v_cache, slot_mapping.clamp(min=0))


def test_minus_one_is_written(failures):
    assert all(name[:2] == "L1" for name in failures("kv.store", writes_padding))
    assert failures("kv.store", writes_padding)


@lie
def modifies_its_input(x, weight, eps, residual=None):
    if residual is None:
        return norm.rms(x, weight, eps)
    residual += x
    return norm.rms(residual, weight, eps)[0], residual


def test_inputs_are_modified(failures):
    found = failures("norm.rms", modifies_its_input, "residual")
    assert found and all("input residual was modified" in message for message in found.values())


@lie
def splits_large_batches(x, weight, bias=None):
    if x.shape[0] <= 16:
        return gemm.dense(x, weight, bias)
    half = x.shape[1] // 2
    y = F.linear(x[:, :half], weight[:, :half]) + F.linear(x[:, half:], weight[:, half:])
    return y if bias is None else y + bias


def test_batch_invariance_claimed_but_not_kept(failures):
    found = failures("gemm.dense", splits_large_batches, "batch_invariant")
    assert list(found) == ["L2-batch_invariant"]
    assert "bits differ" in found["L2-batch_invariant"]


@lie
def splits_by_batch(
    q, k_cache, v_cache, meta, scale, window=None, sinks=None, softcap=None, plan=None,
    return_lse=False,
):  # fmt: skip
    o = attn.paged(q, k_cache, v_cache, meta, scale)
    return o * (1 + 2**-23 * (meta.num_reqs > 4))


def test_batch_invariance_of_attention_claimed_but_not_kept(failures):
    found = failures("attn.paged", splits_by_batch, "varlen", "batch_invariant")
    assert list(found) == ["L2-batch_invariant"]


@lie
def draws_lots(x, limit=None):
    noise = 1 + 1e-7 * torch.randint(0, 3, (x.shape[0], x.shape[1] // 2))
    return act.silu_mul(x, limit) * noise


def test_determinism_claimed_but_not_kept(failures):
    found = failures("act.silu_mul", draws_lots, "deterministic", "limit")
    assert list(found) == ["L2-deterministic"]


@lie
def needs_a_row(x, limit=None):
    assert x.shape[0] > 0, "no rows"
    return act.silu_mul(x, limit)


def test_empty_claimed_but_refused(failures):
    found = failures("act.silu_mul", needs_a_row, "empty_ok")
    assert list(found) == ["L2-empty_ok"]
    assert "(in case ffn96)" in found["L2-empty_ok"]


REMEMBERED = {}


@lie
def remembers_by_address(x, limit=None):
    key = (x.data_ptr(), x.shape)
    if key not in REMEMBERED:
        REMEMBERED.clear()
        REMEMBERED[key] = act.silu_mul(x, limit)
    return REMEMBERED[key]


def test_stale_results_on_replay(failures):
    assert "L2-graph_safe" in failures("act.silu_mul", remembers_by_address, "graph_safe")


@lie
def rounds_down(x, scheme):
    q, scales = quant.act(x, scheme)
    return (x.float() / scales.unsqueeze(1)).floor().clamp(-127, 127).to(q.dtype), scales


def test_a_quantiser_that_leans(failures):
    found = failures("quant.act", rounds_down, schemes=("int8_token",))
    assert found and all(name.startswith("L1-int8_token") for name in found)


@lie
def other_arguments(x, cap=None):
    return act.silu_mul(x, cap)


def test_other_arguments_than_the_op(failures):
    assert "cap" in failures("act.silu_mul", other_arguments)["L0-kernel"]


def test_a_target_that_is_not_there(failures):
    ghost = types.SimpleNamespace(__name__="ghost")
    assert "ghost" in failures("act.silu_mul", ghost)["L0-kernel"]


def test_a_feature_of_another_op(failures):
    assert "window" in failures("norm.rms", honest_rms, "window")["L0-kernel"]


def test_claims_that_supports_takes_back(failures):
    """Refused cases are no proof: a kernel that serves none of them has shown nothing."""
    found = failures("norm.rms", honest_rms, supports=lambda problem: Reason("only on Sundays"))
    assert "only on Sundays" in found["L0-claims-served"]


def test_a_refused_case_is_no_failure(failures):
    def only_even(problem):
        return problem.dim("hidden_size") % 2 == 0 or Reason("odd size")

    assert failures("norm.rms", honest_rms, supports=only_even) == {}


@lie
def fake_transposed(x, limit=None):
    return x.new_empty(x.shape[1] // 2, x.shape[0])


@lie
def honest_silu(x, limit=None):
    return act.silu_mul(x, limit)


def test_a_shape_function_that_is_wrong(failures):
    found = failures("act.silu_mul", honest_silu, fake="liars:fake_transposed")
    assert list(found) == ["L2-fake"]


def test_exact_numerics_are_held_to_the_bits_of_the_reference(failures):
    assert failures("norm.rms", honest_rms, numerics="exact") == {}
    found = failures("gemm.dense", splits_large_batches, numerics="exact")
    assert list(found) == ["L2-exact"]


def test_the_lies_about_attention_have_its_signature():
    """Otherwise they would be caught for the wrong reason."""
    attention = inspect.signature(honest_paged)
    assert list(attention.parameters) == list(OP_SPECS["attn.paged"].signature.parameters)
