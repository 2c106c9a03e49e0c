"""Both backends over single bytes, so that texts go in without a tokenizer."""

import pytest
from deepinfer_core.plugin_api.grammar import Vocabulary
from deepinfer_core.structured.llguidance_backend import LlguidanceBackend
from deepinfer_core.structured.notation import to_notation
from deepinfer_core.structured.spec import StructuredOutput
from deepinfer_core.structured.xgrammar_backend import XgrammarBackend

BYTES = Vocabulary([bytes([byte]) for byte in range(256)])
BACKENDS = {"xgrammar": XgrammarBackend(BYTES), "llguidance": LlguidanceBackend(BYTES)}


@pytest.fixture(scope="session")
def backends():
    return BACKENDS


@pytest.fixture(params=sorted(BACKENDS))
def backend(request):
    return BACKENDS[request.param]


@pytest.fixture
def matches(backend):
    """Whether a text belongs to a form."""
    known = {}

    def match(text, max_whitespace=2, **form):
        key = repr(form)
        if key not in known:
            spec = StructuredOutput(**form)
            known[key] = backend.compile(*to_notation(spec, max_whitespace=max_whitespace))
        matcher = known[key].matcher()
        return all(matcher.accept(byte) for byte in text.encode()) and matcher.can_end

    return match
