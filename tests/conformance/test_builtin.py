"""Core's own kernels keep what they claim, and the suite covers every op."""

import pytest
from deepinfer_core.ops import OP_SPECS
from deepinfer_core.testing.cases import OP_CASES
from deepinfer_core.testing.run import all_checks, run_check
from deepinfer_core.testing.subject import find_subject

SUBJECT = find_subject("builtin")
CHECKS = list(all_checks(SUBJECT))
GROUPS = sorted({(check.level, check.op or check.name, check.provider) for check in CHECKS})


@pytest.mark.parametrize(("level", "what", "provider"), GROUPS)
def test_claims(level, what, provider):
    checks = [c for c in CHECKS if (c.level, c.op or c.name, c.provider) == (level, what, provider)]
    results = [run_check(check) for check in checks]
    assert [(r.name, r.dtype, r.message) for r in results if r.outcome != "passed"] == []


def test_every_op_has_cases():
    assert set(OP_CASES) == set(OP_SPECS)


def test_check_names_are_unique():
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
