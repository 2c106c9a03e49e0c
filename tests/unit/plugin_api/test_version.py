"""API ranges: what fits, and who has to upgrade when it does not."""

import pytest
from deepinfer_core.plugin_api import API_VERSION, range_problem


@pytest.mark.parametrize("api", [">=1.0,<2", "==1.*", "~=1.0", f"=={API_VERSION}", ">=0.9"])
def test_ranges_that_contain_this_version_fit(api):
    assert range_problem(api) is None


@pytest.mark.parametrize(
    ("api", "remedy"),
    [
        (">=2,<3", "upgrade deepinfer-core"),
        (">1.0", "upgrade deepinfer-core"),
        ("==1.7", "upgrade deepinfer-core"),
        ("~=2.1", "upgrade deepinfer-core"),
        ("<1", "upgrade the plugin"),
        (">=0.2,<1", "upgrade the plugin"),
        ("==0.*", "upgrade the plugin"),
    ],
)
def test_ranges_that_do_not_fit_name_both_versions_and_who_upgrades(api, remedy):
    assert range_problem(api, version="1.0") == (
        f"it needs plugin API {api}, this deepinfer-core serves 1.0; {remedy}"
    )


def test_a_minor_beyond_the_range_is_refused_and_one_inside_is_not():
    assert range_problem(">=1.2,<2", version="1.1") is not None
    assert range_problem(">=1.2,<2", version="1.3") is None


@pytest.mark.parametrize("api", ["one", "1.0", ">=", "", "  "])
def test_what_is_no_range_is_refused(api):
    assert "range" in range_problem(api)
