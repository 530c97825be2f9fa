from recycle.state.host_memory import available_memory, total_memory

GIBIBYTE = 1 << 30


def host(folder, available, group="/a/b"):
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True, exist_ok=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 * GIBIBYTE // 1024} kB\nMemAvailable:   {available // 1024} kB\n")
    (proc / "self" / "cgroup").write_text(f"1:name=systemd:/x\n0::{group}\n")
    return proc, folder / "cgroup"


def limit(folder, most, taken):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{taken}\n")


def test_the_least_of_what_the_machine_and_each_control_group_has_left(tmp_path):
    proc, groups = host(tmp_path, available=8 * GIBIBYTE)
    assert available_memory(proc, groups) == 8 * GIBIBYTE
    limit(groups / "a" / "b", "max", GIBIBYTE)
    assert available_memory(proc, groups) == 8 * GIBIBYTE
    limit(groups / "a", 4 * GIBIBYTE, GIBIBYTE)
    assert available_memory(proc, groups) == 3 * GIBIBYTE
    limit(groups, GIBIBYTE, 2 * GIBIBYTE)
    assert available_memory(proc, groups) == 0


def test_the_least_of_what_the_machine_has_and_each_control_group_may_take(tmp_path):
    proc, groups = host(tmp_path, available=8 * GIBIBYTE)
    limit(groups / "a" / "b", "max", GIBIBYTE)
    assert total_memory(proc, groups) == 16 * GIBIBYTE
    limit(groups / "a", 4 * GIBIBYTE, 5 * GIBIBYTE)
    assert total_memory(proc, groups) == 4 * GIBIBYTE


def test_what_files_take_of_a_control_group_can_be_taken(tmp_path):
    proc, groups = host(tmp_path, available=8 * GIBIBYTE)
    limit(groups / "a", 4 * GIBIBYTE, 4 * GIBIBYTE)
    assert available_memory(proc, groups) == 0
    counted = f"anon {GIBIBYTE}\nfile {3 * GIBIBYTE}\nshmem {GIBIBYTE}\ninactive_anon 7\n"
    (groups / "a" / "memory.stat").write_text(f"{counted}inactive_file {GIBIBYTE}\nactive_file {GIBIBYTE // 2}\n")
    assert available_memory(proc, groups) == 3 * GIBIBYTE // 2


def test_this_machine_has_some():
    assert 0 < available_memory() <= total_memory()
