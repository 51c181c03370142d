from srl.launch.host.cgroup import cpu_quota, memory_left, memory_limit, oom_kills, processes_left


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


def test_memory_left_is_that_of_the_tightest_group_without_droppable_files(tmp_path):
    write(tmp_path / "job/memory.max", "5000\n")
    write(tmp_path / "job/memory.current", "4500\n")
    write(tmp_path / "job/memory.stat", "anon 100\ninactive_file 1500\n")
    write(tmp_path / "job/step/memory.max", "max\n")
    write(tmp_path / "job/step/memory.current", "1\n")
    assert memory_left(tmp_path, "0::/job/step\n") == 5000 - (4500 - 1500)
    write(tmp_path / "job/step/memory.max", "500\n")
    assert memory_left(tmp_path, "0::/job/step\n") == 499
    write(tmp_path / "job/step/memory.current", "600\n")  # a limit that was lowered
    assert memory_left(tmp_path, "0::/job/step\n") == 0


def test_memory_left_of_version_1(tmp_path):
    write(tmp_path / "memory/job/memory.limit_in_bytes", "2000\n")
    write(tmp_path / "memory/job/memory.usage_in_bytes", "1500\n")
    write(tmp_path / "memory/job/memory.stat", "inactive_file 7\ntotal_inactive_file 300\n")
    assert memory_left(tmp_path, "2:memory:/job\n0::/\n") == 800


def test_processes_left_are_the_least_of_all_groups_above(tmp_path):
    write(tmp_path / "pids/job/step/pids.max", "max\n")
    write(tmp_path / "pids/job/pids.max", "100\n")
    write(tmp_path / "pids/job/pids.current", "88\n")
    assert processes_left(tmp_path, "8:pids:/job/step\n0::/\n") == 12
    assert processes_left(tmp_path, "8:pids:/other\n0::/\n") is None


def test_kills_for_lack_of_memory_are_those_of_the_own_group(tmp_path):
    write(tmp_path / "job/memory.events", "low 0\noom 5\noom_kill 3\n")
    write(tmp_path / "memory.events", "oom_kill 9\n")
    assert oom_kills(tmp_path, "0::/job\n") == 3
    write(tmp_path / "memory/job/memory.oom_control", "under_oom 0\noom_kill 2\n")
    assert oom_kills(tmp_path, "2:memory:/job\n") == 2
    assert oom_kills(tmp_path / "nowhere", "0::/job\n") is None
