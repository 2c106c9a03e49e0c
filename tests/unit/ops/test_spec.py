"""The `@op` decorator refuses specs that could not be a contract."""

import pytest
from deepinfer_core.ops import OP_SPECS, op
from deepinfer_core.ops.spec import make_spec


def documented(x, eps=1.0):
    """Do something."""


def test_a_spec_knows_its_key_family_and_reference():
    spec = make_spec("norm.thing", documented, major=3, tier=1, features={"bias"})
    assert (spec.key, spec.family) == ("norm.thing@3", "norm")
    assert spec.reference == "deepinfer_core.ops.reference.norm:thing"
    assert list(spec.signature.parameters) == ["x", "eps"]
    assert (spec.features, spec.runs_in) == ({"bias"}, "all_steps")


def test_the_decorator_records_and_returns_the_stub():
    try:
        assert op("fake.recorded", major=1, tier=0)(documented) is documented
        assert OP_SPECS["fake.recorded"].doc == "Do something."
        with pytest.raises(ValueError, match=r"fake\.recorded has two specs"):
            op("fake.recorded", major=1, tier=0)(documented)
    finally:
        OP_SPECS.pop("fake.recorded", None)


def test_bad_specs_are_refused():
    with pytest.raises(ValueError, match="needs a family"):
        make_spec("rms", documented, major=1, tier=0)
    with pytest.raises(ValueError, match="no docstring"):
        make_spec("norm.rms", lambda x: x, major=1, tier=0)
    with pytest.raises(ValueError, match=r"\['tachyons'\]"):
        make_spec("norm.rms", documented, major=1, tier=0, features={"tachyons"})
    # A property of any kernel, not an option of the op.
    with pytest.raises(ValueError, match="batch_invariant"):
        make_spec("norm.rms", documented, major=1, tier=0, features={"batch_invariant"})
