"""The tutorial plugin keeps what it claims."""

import pytest
from deepinfer_core.testing.run import run_conformance


@pytest.fixture
def example(monkeypatch, request):
    """What `--deepinfer-plugin` would be given for the plugin in this checkout."""
    source = request.config.rootpath / "plugins" / "deepinfer-example" / "src"
    monkeypatch.syspath_prepend(str(source))
    return "deepinfer_example.plugin"


def test_the_example_plugin(example):
    report = run_conformance(example, levels=("L0", "L1", "L2"))
    assert report.failures == []
    assert {result.provider for result in report.results} > {"example.rms", "example.silu_mul"}
    assert any(claim.what == "batch_invariant" for claim in report.non_claims)
