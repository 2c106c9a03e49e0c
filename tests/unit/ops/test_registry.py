"""Selection: what is refused and why, who goes first, and that import order never matters."""

import itertools

import pytest
from deepinfer_core.errors import PluginError, UnsupportedOpError
from deepinfer_core.ops.registry import SelectionRules, caps_refusal, refusal, select
from deepinfer_core.ops.spec import make_spec
from deepinfer_core.plugin_api import Caps, DeviceInfo, KernelPolicy, KernelSpec, Problem, Reason
from hypothesis import given
from hypothesis import strategies as st

CPU = DeviceInfo(kind="cpu", memory_bytes=1000)
BOARD = DeviceInfo(kind="board", arch="2.0", memory_bytes=1000)


def stub(x):
    """A fake op."""


SPEC = make_spec("fake.op", stub, major=2, tier=0, features={"window", "sinks"})
ADAPTED = make_spec("fake.op", stub, major=2, tier=0, previous="some_module:adapt")


def kernel(provider="a.one", op="fake.op@2", **fields):
    fields.setdefault("caps", Caps(device_kinds=("*",)))
    return KernelSpec(op=op, provider=provider, target="m:f", **fields)


def problem(**fields):
    return Problem(**{"op": "fake.op", "dtype": "float32", **fields})


def rules(device=CPU, **fields):
    return SelectionRules(device=device, **fields)


def why_not(caps, asked=None, device=CPU, required=frozenset()):
    return caps_refusal(caps, asked or problem(), device, required)


def test_default_caps_serve_plain_float32_on_the_cpu_and_nothing_else():
    assert why_not(Caps()) is None
    assert why_not(Caps(), device=BOARD) == "serves devices cpu, not board"
    assert why_not(Caps(), problem(dtype="bfloat16")) == "dtype bfloat16 is not one of float32"
    assert why_not(Caps(), problem(kv_dtype="fp8")) == "kv dtype fp8 is not one of (none)"
    assert why_not(Caps(), problem(scheme="int8_token")) == "scheme int8_token is not one of (none)"
    assert why_not(Caps(), problem(features=frozenset({"sinks", "window"}))) == (
        "does not claim sinks, window"
    )


def test_what_is_listed_is_served():
    caps = Caps(
        device_kinds=("board", "other"),
        dtypes=("float16", "bfloat16"),
        kv_dtypes=("fp8",),
        dims={"head_dim": (64, 128)},
        features=frozenset({"window"}),
        schemes=("int8_token",),
    )
    asked = problem(
        dtype="bfloat16",
        kv_dtype="fp8",
        shape=(("block_size", 7), ("head_dim", 128)),
        features=frozenset({"window"}),
        scheme="int8_token",
    )
    assert why_not(caps, asked, BOARD) is None
    assert why_not(caps, problem(dtype="bfloat16", kv_dtype="bfloat16"), BOARD) is None
    assert why_not(caps, problem(dtype="bfloat16", shape=(("head_dim", 96),)), BOARD) == (
        "head_dim 96 is not one of 128, 64"
    )


def test_a_permission_refuses_nobody():
    allowed = problem(features=frozenset({"rounded_rows"}))
    assert why_not(Caps(), allowed) is None
    rounding = Caps(features=frozenset({"rounded_rows"}))
    assert why_not(rounding) is None
    required = frozenset({"batch_invariant"})
    assert why_not(rounding, allowed, required=required) == "does not claim batch_invariant"


@pytest.mark.parametrize("flag", ["batch_invariant", "deterministic"])
def test_required_features_filter_on_caps(flag):
    assert why_not(Caps(), required=frozenset({flag})) == f"does not claim {flag}"
    assert why_not(Caps(features=frozenset({flag})), required=frozenset({flag})) is None


@pytest.mark.parametrize(
    ("window", "arch", "fits"),
    [
        ((None, None), None, True),
        (("9.0", None), "10.0", True),  # as numbers, not as text
        (("9.0", None), "8.9", False),
        (("9.0", "9.9"), "10.0", False),
        ((None, "9.0"), "9.0", True),
        (("910", None), "910b3", True),
        (("910b", "910c"), "910b3", True),
        (("910c", None), "910b3", False),
        (("9.0", None), None, False),
    ],
)
def test_arch_windows_compare_as_versions(window, arch, fits):
    device = DeviceInfo(kind="board", arch=arch)
    reason = why_not(Caps(device_kinds=("board",), arch=window), device=device)
    assert (reason is None) == fits
    assert fits or (window[0] or window[1]) in reason


def test_supports_speaks_after_caps_and_only_about_problems_that_caps_cover():
    asked = []

    def supports(given):
        asked.append(given)
        return Reason("only on sundays")

    refused = kernel(supports=supports)
    assert refusal(refused, SPEC, problem(dtype="float16"), rules()).startswith("dtype float16")
    assert asked == []
    assert refusal(refused, SPEC, problem(), rules()) == "only on sundays"
    assert refusal(kernel(supports=lambda p: True), SPEC, problem(), rules()) is None
    assert "without a reason" in refusal(kernel(supports=lambda p: False), SPEC, problem(), rules())


def test_workspace_must_fit_the_device_and_is_recorded():
    greedy = kernel("a.greedy", workspace=lambda p: 1001, priority=30)
    modest = kernel("a.modest", workspace=lambda p: 10)
    choice = select(SPEC, problem(), [greedy, modest], rules())
    assert (choice.provider, choice.workspace_bytes) == ("a.modest", 10)
    assert choice.rejected == (
        ("a.greedy", "needs 1,001 bytes of workspace, the device has 1,000"),
    )
    unknown_size = DeviceInfo(kind="cpu")
    assert select(SPEC, problem(), [greedy, modest], rules(unknown_size)).provider == "a.greedy"


@pytest.mark.parametrize("question", ["supports", "workspace"])
def test_a_kernel_whose_own_function_raises_is_named(question):
    def fail(_problem):
        raise KeyError("head_dim")

    with pytest.raises(PluginError, match=r"kernel a\.one .* KeyError.*") as caught:
        select(SPEC, problem(), [kernel(**{question: fail})], rules())
    assert question in str(caught.value)


def test_rank_is_override_then_policy_then_priority_then_name():
    offered = [kernel("a.low", priority=0), kernel("b.mid", priority=20),
               kernel("c.mid", priority=20), kernel("d.high", priority=30)]  # fmt: skip
    policy = KernelPolicy("fake.*", ("missing.x", "c.mid"), "measured")

    def chosen(subset, **fields):
        return select(SPEC, problem(), subset, rules(**fields))

    assert chosen(offered).provider == "d.high"
    assert chosen(offered[:3]).provider == "b.mid"
    by_policy = chosen(offered, policies=[policy])
    assert (by_policy.provider, by_policy.why) == ("c.mid", "policy: measured")
    by_person = chosen(offered, policies=[policy], overrides={"fake.op": ("a.low",)})
    assert (by_person.provider, by_person.why) == ("a.low", "named in kernels=")
    assert [name for name, _ in by_person.rejected] == ["c.mid", "d.high", "b.mid"]


def test_the_closest_override_counts_and_lists_are_in_order_of_preference():
    offered = [kernel("a.x"), kernel("b.x"), kernel("c.x")]
    overrides = {"*": ("a.x",), "fake.*": ("c.x",), "fake.op": ("b.x", "a.x")}
    assert select(SPEC, problem(), offered, rules(overrides=overrides)).provider == "b.x"
    del overrides["fake.op"]
    assert select(SPEC, problem(), offered, rules(overrides=overrides)).provider == "c.x"
    del overrides["fake.*"]
    assert select(SPEC, problem(), offered, rules(overrides=overrides)).provider == "a.x"


def test_a_list_falls_through_to_its_next_name_but_never_beyond_the_list():
    unable = kernel("a.x", caps=Caps(dtypes=("float16",)))
    offered = [unable, kernel("b.x"), kernel("c.x", priority=30)]
    both = rules(overrides={"fake.op": ("a.x", "b.x")})
    assert select(SPEC, problem(), offered, both).provider == "b.x"
    with pytest.raises(UnsupportedOpError) as caught:
        select(SPEC, problem(), offered, rules(overrides={"fake.op": ("a.x",)}))
    assert caught.value.reasons == (
        ("a.x", "named, but dtype float32 is not one of float16"),
        ("b.x", "can serve, but kernels= names others"),
        ("c.x", "can serve, but kernels= names others"),
    )


def test_a_named_provider_without_a_kernel_for_the_op_is_an_error():
    with pytest.raises(UnsupportedOpError, match=r"b\.x: named, but offers no kernel of this op"):
        select(SPEC, problem(), [kernel("a.x")], rules(overrides={"fake.*": ("b.x",)}))


def test_policies_match_roles_and_an_exact_op_goes_before_a_pattern():
    offered = [kernel("a.x"), kernel("b.x"), kernel("c.x")]
    policies = [
        KernelPolicy("*", ("b.x",), "everywhere"),
        KernelPolicy("fake.op", ("c.x",), "for experts", role="mlp.*"),
    ]
    asked = {"mlp.up": "c.x", "attn.q": "b.x"}
    for role, provider in asked.items():
        choice = select(SPEC, problem(role=role), offered, rules(policies=policies))
        assert choice.provider == provider


def test_nobody_can_serve_lists_every_candidate():
    offered = [kernel("b.x", caps=Caps(dtypes=("float16",))), kernel("a.x", caps=Caps(("board",)))]
    with pytest.raises(UnsupportedOpError, match=r"fake\.op as attn\.q \(float32, n=3\)") as caught:
        select(SPEC, problem(role="attn.q", shape=(("n", 3),)), offered, rules())
    assert [name for name, _ in caught.value.reasons] == ["a.x", "b.x"]
    with pytest.raises(UnsupportedOpError, match="no plugin offers this op"):
        select(SPEC, problem(), [kernel(op="other.op@1")], rules())


def test_majors_current_and_adapted_previous_serve_others_say_who_must_upgrade():
    assert refusal(kernel(), SPEC, problem(), rules()) is None
    assert refusal(kernel(op="fake.op@1"), ADAPTED, problem(), rules()) is None
    assert refusal(kernel(op="fake.op@1"), SPEC, problem(), rules()) == (
        "implements fake.op@1, core serves @2; upgrade the plugin"
    )
    assert refusal(kernel(op="fake.op@3"), ADAPTED, problem(), rules()) == (
        "implements fake.op@3, core serves @2 and @1; upgrade deepinfer-core"
    )
    assert "upgrade the plugin" in refusal(kernel(op="fake.op@0"), ADAPTED, problem(), rules())


def test_reference_on_an_accelerator_is_marked_and_strict_refuses_it():
    reference = kernel("torch.reference", priority=0)
    assert select(SPEC, problem(), [reference], rules(BOARD)).is_reference_on_accelerator
    assert not select(SPEC, problem(), [reference], rules(CPU)).is_reference_on_accelerator
    assert not select(SPEC, problem(), [kernel()], rules(BOARD)).is_reference_on_accelerator
    with pytest.raises(UnsupportedOpError, match="strict: a reference kernel for a hot op"):
        select(SPEC, problem(), [reference], rules(BOARD, strict=True))
    assert select(SPEC, problem(), [reference], rules(CPU, strict=True)).provider
    cold = make_spec("fake.op", stub, major=2, tier=0, runs_in="few_steps")
    assert select(cold, problem(), [reference], rules(BOARD, strict=True)).provider


KERNELS = [
    kernel(f"{vendor}.k", priority=priority, caps=Caps(dtypes=dtypes))
    for vendor, priority, dtypes in itertools.product(
        "abc", (0, 20), (("float32",), ("float16",), ("float32", "float16"))
    )
]


@given(
    st.lists(st.sampled_from(KERNELS), min_size=1, unique_by=lambda k: k.provider),
    st.sampled_from(["float32", "float16"]),
    st.randoms(use_true_random=False),
)
def test_the_order_of_registration_never_matters(offered, dtype, random):
    def outcome(kernels):
        try:
            choice = select(SPEC, problem(dtype=dtype), kernels, rules())
        except UnsupportedOpError as error:
            return error.reasons
        return choice.provider, choice.why, choice.rejected

    shuffled = list(offered)
    random.shuffle(shuffled)
    result = outcome(offered)
    assert outcome(shuffled) == result
    # Every candidate is accounted for: the chosen one, or a reason.
    mentioned = {result[0], *dict(result[2])} if len(result) == 3 and isinstance(
        result[0], str) else set(dict(result))  # fmt: skip
    assert mentioned == {k.provider for k in offered}
