"""How much CPU time a container's limit leaves, of files as the kernel has them."""

import pytest

from prnn_jax._engine.modules import native

pytestmark = pytest.mark.skipif(
    not hasattr(native, "cpu_quota"), reason="needs the compiled module"
)


def quota(tmp_path, groups: str, files: dict[str, str]) -> float | None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return native.cpu_quota(str(tmp_path))


V1 = "4:memory:/docker/7f\n3:cpu,cpuacct:/docker/7f\n2:cpuset:/\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        # Of a container that sees its own group as the root.
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        # The least of a group and those around it.
        (
            "0::/pod/one\n",
            {"pod/cpu.max": "100000 50000", "pod/one/cpu.max": "max 100000"},
            2.0,
        ),
        ("0::/pod/one\n", {"pod/one/cpu.max": "50000 100000"}, 0.5),
        # The host's path, which is not there: the mount is the container's.
        ("0::/docker/7f\n", {"cpu.max": "400000 100000"}, 4.0),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        (
            V1,
            {
                "cpu,cpuacct/docker/7f/cpu.cfs_quota_us": "150000",
                "cpu,cpuacct/docker/7f/cpu.cfs_period_us": "100000",
            },
            1.5,
        ),
        # cpuset and cpuacct are other controllers.
        (
            "2:cpuset,cpuacct:/\n",
            {"cpu/cpu.cfs_quota_us": "9", "cpu/cpu.cfs_period_us": "10"},
            None,
        ),
        ("0::/\n", {"cpu.max": "no numbers"}, None),
        ("0::/\n", {"cpu.max": "100000 0"}, None),
        ("", {}, None),
    ],
)
def test_of_groups(tmp_path, groups, files, expected):
    assert quota(tmp_path, groups, files) == expected


def test_without_such_files(tmp_path):
    assert native.cpu_quota(str(tmp_path)) is None
