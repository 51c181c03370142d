from srl.tools.cgroup import cpu_quota, memory_limit


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_of_version_2_are_the_least_of_all_groups_above(tmp_path):
    write(tmp_path / "job/step/cpu.max", "max 100000\n")
    write(tmp_path / "job/cpu.max", "150000 100000\n")
    write(tmp_path / "job/step/memory.max", "4000\n")
    write(tmp_path / "job/memory.max", "3000\n")
    assert cpu_quota(tmp_path, "0::/job/step\n") == 1.5
    assert memory_limit(tmp_path, "0::/job/step\n") == 3000


def test_limits_of_version_1_are_found_below_their_controller(tmp_path):
    write(tmp_path / "cpu/job/cpu.cfs_quota_us", "50000\n")
    write(tmp_path / "cpu/job/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "memory/job/memory.limit_in_bytes", "2000\n")
    write(tmp_path / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    membership = "3:cpu,cpuacct:/job\n2:memory:/job\n0::/\n"
    assert cpu_quota(tmp_path, membership) == 0.5
    assert memory_limit(tmp_path, membership) == 2000


def test_container_that_sees_its_group_as_the_root_is_limited_by_it(tmp_path):
    write(tmp_path / "memory.max", "5000\n")
    assert memory_limit(tmp_path, "0::/outside/of/here\n") == 5000


def test_no_limit_is_none(tmp_path):
    write(tmp_path / "cpu.max", "max 100000\n")
    write(tmp_path / "memory.max", "max\n")
    assert cpu_quota(tmp_path, "0::/\n") is None
    assert memory_limit(tmp_path, "0::/\n") is None
    assert cpu_quota(tmp_path / "nowhere", "") is None
