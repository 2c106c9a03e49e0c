"""Memory within a container's limits, and CPU features, read from files of our own making."""

import psutil
from deepinfer_core.host_machine import cpu_features, cpu_name, memory_info


def cgroup(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(text)
    return tmp_path


def test_without_a_limit_it_is_the_machine(tmp_path):
    total = psutil.virtual_memory().total
    assert memory_info(tmp_path)[1] == total
    assert memory_info(cgroup(tmp_path, max="max\n"))[1] == total
    free, _ = memory_info(tmp_path)
    assert 0 < free <= total


def test_a_containers_limit_counts_and_its_file_cache_is_free(tmp_path):
    limited = cgroup(
        tmp_path, max="1000\n", current="700\n", stat="anon 400\ninactive_file 250\nslab 3\n"
    )
    assert memory_info(limited) == (1000 - (700 - 250), 1000)


def test_a_container_over_its_limit_has_nothing_free(tmp_path):
    assert memory_info(cgroup(tmp_path, max="1000", current="1200")) == (0, 1000)


def test_cpu_features_and_name_on_both_architectures(tmp_path):
    x86, arm = tmp_path / "x86", tmp_path / "arm"
    x86.write_text("model name\t: Xeon 9\nflags\t\t: fpu avx2 amx_tile sse\n\nflags\t: avx2\n")
    arm.write_text("processor : 0\nFeatures\t: fp asimd sve2\n")
    assert cpu_features(x86) == {"avx2", "amx_tile"}
    assert cpu_features(arm) == {"asimd", "sve2"}
    assert cpu_name(x86) == "Xeon 9"
    assert cpu_features(tmp_path / "none") == frozenset()
    assert cpu_name(tmp_path / "none")
