"""The way back: the record on the node, and what is put back from it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from modules import load_module, run_module

from gb10.undo import undo_todo

original = load_module("gb10_original")


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- the record: gb10_original ---------------------------------------------------------------------------------------


def keep(tmp_path: Path, *items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return run_module("gb10_original", items=list(items), directory=str(tmp_path / "originals"), **more)


def test_the_first_state_is_the_original_one(tmp_path: Path) -> None:
    file, folder = tmp_path / "conf", tmp_path / "originals"
    file.write_text("theirs")
    file.chmod(0o640)
    item = {"kind": "file", "name": str(file), "ours": sha("ours")}
    assert keep(tmp_path, item)["changed"]
    file.write_text("ours")
    assert not keep(tmp_path, item)["changed"]
    assert keep(tmp_path, item | {"ours": sha("ours again")})["changed"]
    file.write_text("ours again")
    held = keep(tmp_path, state="read")["items"][f"file:{file}"]
    assert held["was"]["sha256"] == sha("theirs")
    assert held["was"]["mode"] == "0640"
    assert held["ours"] == [sha("ours"), sha("ours again")]
    assert held["now"]["sha256"] == sha("ours again")
    assert (folder / sha("theirs")).read_text() == "theirs"
    assert {oct(p.stat().st_mode & 0o777) for p in folder.iterdir()} == {"0o600"}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_nothing_there_is_an_original_too_and_the_last_item_takes_the_record_with_it(tmp_path: Path) -> None:
    file, folder = tmp_path / "conf", tmp_path / "originals"
    items = [{"kind": "file", "name": str(file)}, {"kind": "directory", "name": str(tmp_path / "new")}]
    keep(tmp_path, *items)
    file.write_text("a program's")
    assert keep(tmp_path, items[0] | {"ours": "now"})["changed"]
    held = keep(tmp_path, state="read")["items"]
    assert held[f"file:{file}"]["was"] == {"exists": False}
    assert held[f"file:{file}"]["ours"] == [sha("a program's")]
    assert keep(tmp_path, items[0], state="forgotten")["changed"]
    assert not keep(tmp_path, items[0], state="forgotten")["changed"]
    assert list(keep(tmp_path, state="read")["items"]) == [f"directory:{tmp_path / 'new'}"]
    keep(tmp_path, items[1], state="forgotten")
    assert not folder.exists()


def test_check_mode_predicts_and_keeps_nothing(tmp_path: Path) -> None:
    item = {"kind": "sysctl", "name": "kernel.hostname", "ours": "x"}
    predicted = run_module("gb10_original", check=True, items=[item], directory=str(tmp_path / "o"))
    assert predicted["changed"]
    assert not (tmp_path / "o").exists()
    keep(tmp_path, item)
    (held,) = keep(tmp_path, state="read")["items"].values()
    assert held["was"] == held["now"] == os.uname().nodename


def test_values_of_several_numbers_are_told_with_single_spaces() -> None:
    """As settings have them; the kernel separates with tabs."""
    held = original.read_sysctl("net.ipv4.ip_local_port_range")
    assert held == " ".join(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert "\t" not in held
    assert original.read_sysctl("vm.no_such") is None


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"kind": "rootfs", "name": "/"}, "is no item"),
        ({"kind": "file", "name": ""}, "is no item"),
        ({"kind": "file", "name": "etc/passwd"}, "no absolute path"),
        ({"kind": "file", "name": "/etc/passwd", "more": 1}, "is no item"),
    ],
)
def test_what_is_no_item_is_refused_in_one_line(tmp_path: Path, item: dict[str, Any], says: str) -> None:
    failed = keep(tmp_path, item)
    assert failed["msg"].startswith("error [original-unkept] ")
    assert says in failed["msg"]


def test_a_record_that_is_broken_is_kept_and_nothing_is_added(tmp_path: Path) -> None:
    (tmp_path / "originals").mkdir()
    (tmp_path / "originals/originals.json").write_text("{")
    failed = keep(tmp_path, {"kind": "sysctl", "name": "kernel.hostname"})
    assert "original-unkept" in failed["msg"]
    assert (tmp_path / "originals/originals.json").read_text() == "{"


# --- our files: gb10_original ----------------------------------------------------------------------------------------


def lay(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return run_module("gb10_original", directory=str(tmp_path / "originals"), **more)


def test_a_file_is_written_after_what_was_there_is_on_record(tmp_path: Path) -> None:
    file = tmp_path / "conf"
    file.write_text("theirs")
    os.chown(file, 1, 1)
    item = {"kind": "file", "name": str(file), "ours": sha("ours")}
    asked = {"items": [item], "files": [{"path": str(file), "content": "ours", "mode": "0640"}]}
    predicted = lay(tmp_path, check=True, **asked)
    assert predicted["changed"]
    assert file.read_text() == "theirs"
    done = lay(tmp_path, **asked)
    assert done["changed"]
    assert [(part["before"], part["after"]) for part in done["diff"]] == [("theirs", "ours")]
    assert predicted["diff"] == done["diff"]
    assert (file.read_text(), file.stat().st_mode & 0o7777, file.stat().st_uid) == ("ours", 0o640, 0)
    assert (tmp_path / "originals" / sha("theirs")).read_text() == "theirs"
    assert not lay(tmp_path, **asked)["changed"]
    file.write_text("bent")  # its item is on record: the file alone differs
    assert not lay(tmp_path, state="read", **asked)["changed"]
    assert lay(tmp_path, state="forgotten", **asked | {"items": []})["diff"] == []
    assert file.read_text() == "bent"
    assert lay(tmp_path, **asked)["changed"]
    assert file.read_text() == "ours"


@pytest.mark.parametrize("spoil", ["mode", "owner", "group", "content", "link", "gone"])
def test_a_file_that_is_not_as_it_should_be_is_written_again(tmp_path: Path, spoil: str) -> None:
    file, other = tmp_path / "conf", tmp_path / "other"
    other.write_text("theirs")
    ours = {"path": str(file), "content": "ours", "mode": "0644"}
    original.lay([], [ours], False)
    owners = {"owner": (1, 0), "group": (0, 1)}
    if spoil in ("link", "gone"):
        file.unlink()
    if spoil == "link":
        file.symlink_to(other)
    elif spoil == "mode":
        file.chmod(0o600)
    elif spoil in owners:
        os.chown(file, *owners[spoil])
    elif spoil == "content":
        file.write_text("bent")
    predicted = original.lay([], [ours], True)[0][0]
    assert original.lay([], [ours], False) == ([predicted], None)
    assert original.lay([], [ours], False) == ([], None)
    assert predicted["before"] != predicted["after"]
    assert predicted["after_header"] == str(file)
    assert not file.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o7777, file.stat().st_uid) == ("ours", 0o644, 0)
    assert other.read_text() == "theirs"


def test_directories_are_made_outermost_first_and_those_there_stay_as_they_are(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "there/new/inner"
    there.mkdir(mode=0o700)
    folders, ours = [str(there), str(new.parent), str(new)], {"path": f"{new}/f", "content": "", "mode": "0644"}
    predicted = original.lay(folders, [ours], True)
    assert not new.parent.exists()
    before = os.umask(0o077)
    try:
        assert original.lay(folders, [ours], False) == predicted
    finally:
        os.umask(before)
    assert [part["after_header"] for part in predicted[0]] == [str(new.parent), str(new), f"{new}/f"]
    assert [path.stat().st_mode & 0o777 for path in (there, new.parent, new)] == [0o700, 0o755, 0o755]
    assert original.lay(folders, [ours], False) == ([], None)


def test_a_file_is_roots_also_where_its_directory_hands_down_a_group(tmp_path: Path) -> None:
    os.chown(tmp_path, 0, 1)
    tmp_path.chmod(0o2755)
    asked = {"files": [{"path": str(tmp_path / "conf"), "content": "ours"}]}
    assert lay(tmp_path, **asked)["changed"]
    assert (tmp_path / "conf").stat().st_gid == 0
    assert not lay(tmp_path, **asked)["changed"]


def test_nothing_is_written_where_the_record_cannot_be_kept(tmp_path: Path) -> None:
    file = tmp_path / "conf"
    file.write_text("theirs")
    (tmp_path / "originals").mkdir()
    (tmp_path / "originals/originals.json").write_text("{")
    asked = {"items": [{"kind": "file", "name": str(file)}], "files": [{"path": str(file), "content": "ours"}]}
    assert "error [original-unkept]" in lay(tmp_path, **asked)["msg"]
    assert file.read_text() == "theirs"


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "conf"
    place.mkdir()
    files = [{"path": str(tmp_path / name), "content": "ours"} for name in ("first", "conf", "last")]
    failed = lay(tmp_path, files=files)
    assert failed["changed"]  # what was done before is told
    assert [part["after_header"] for part in failed["diff"]] == [f"{tmp_path}/first"]
    assert failed["msg"].startswith("error [file-unwritten] ")
    assert str(place) in failed["msg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conf", "first"]


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True, timeout=30)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True, timeout=30)


@pytest.mark.parametrize("size", [100_000, 60_000])  # no room for the copy; room for it, none for the record after it
def test_a_record_that_finds_no_room_stays_as_it_was_and_the_next_run_keeps_it(small_disk: Path, size: int) -> None:
    folder, big = small_disk / "originals", small_disk.parent / "big"
    big.write_bytes(os.urandom(size))
    first = {"kind": "sysctl", "name": "kernel.hostname", "ours": "x" * 1000}
    run_module("gb10_original", items=[first], directory=str(folder))
    before = (folder / "originals.json").read_bytes()
    items = [{"kind": "file", "name": str(big), "ours": "y" * 4000}]
    failed = run_module("gb10_original", items=items, directory=str(folder))
    assert failed["msg"].startswith(f"error [original-unkept] {folder}: [Errno 28] No space left on device")
    assert (folder / "originals.json").read_bytes() == before
    assert not list(folder.glob("*.part"))
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True, timeout=30)
    assert run_module("gb10_original", items=items, directory=str(folder))["changed"]
    held = run_module("gb10_original", state="read", directory=str(folder))["items"]
    assert set(held) == {"sysctl:kernel.hostname", f"file:{big}"}
    assert (folder / held[f"file:{big}"]["was"]["sha256"]).read_bytes() == big.read_bytes()


@pytest.mark.parametrize(("module", "held", "more"), [("original", b"old", b"n"), ("netplan", "old", "n")])
def test_a_file_that_finds_no_room_stays_as_it_was(small_disk: Path, module: str, held: Any, more: Any) -> None:
    write, file = load_module(f"gb10_{module}").write, small_disk / "file.yaml"
    write(file, held)
    with pytest.raises(OSError, match="No space left"):
        write(file, more * 100_000)
    assert file.read_text() == "old"
    assert list(small_disk.iterdir()) == [file]


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("UUID=1 /data ext4 noatime 0 2", "/data"),
        ("# UUID=1 /data ext4 noatime 0 2", None),
        ("", None),
        ("UUID=1 none", None),
    ],
)
def test_lines_of_fstab(line: str, target: str | None) -> None:
    assert original.target_of(line) == target


# --- what is put back ------------------------------------------------------------------------------------------------

WAS = {"exists": True, "mode": "0640", "owner": "root", "group": "adm", "sha256": sha("theirs")}
OURS = {"exists": True, "mode": "0644", "owner": "root", "group": "root", "sha256": sha("ours")}
GONE = {"exists": False}
BACK = {"path": "/etc/x", "held": f"/o/{sha('theirs')}", "mode": "0640", "owner": "root", "group": "adm"}
LINE = "UUID=1 /data ext4 noatime 0 0"


def undo(kind: str, name: str, was: Any, now: Any, ours: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    item = {"kind": kind, "name": name, "was": was, "now": now, "ours": list(ours), "since": "2026-11-30T12:00:00Z"}
    return undo_todo("spark-153", {f"{kind}:{name}": item}, "/o", **{"containers": 0} | more)


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        (WAS, OURS, {"files": [BACK]}),
        (WAS, {**WAS, "mode": "0600"}, {"files": [BACK]}),
        (WAS, WAS, {}),
        (GONE, OURS, {"absent": ["/etc/x"]}),
        (GONE, GONE, {}),
        ({"exists": True, "mode": "0777", "link": "../y"}, OURS, {"links": [{"path": "/etc/x", "src": "../y"}]}),
    ],
)
def test_files(was: Any, now: Any, expected: dict[str, Any]) -> None:
    todo = undo("file", "/etc/x", was, now, (sha("ours"),))
    assert todo["said"] == []
    assert todo["forget"] == [{"kind": "file", "name": "/etc/x"}]
    assert {key: todo[key] for key in ("files", "absent", "links") if todo[key]} == expected


@pytest.mark.parametrize(
    ("kind", "was", "now", "ours"),
    [
        ("file", WAS, {**OURS, "sha256": sha("somebody's")}, (sha("ours"),)),
        ("file", GONE, {**OURS, "sha256": sha("somebody's")}, (sha("ours"),)),
        ("file", WAS, GONE, (sha("ours"),)),
        ("file", WAS, {"exists": True, "mode": "0777", "link": "y"}, (sha("ours"),)),
        ("sysctl", "10", "30", ("20",)),
        ("fstab", {"line": None, "mounted": False}, {"line": LINE + "x", "mounted": True}, (LINE,)),
    ],
)
def test_what_somebody_changed_after_us_stays_and_is_said(kind: str, was: Any, now: Any, ours: tuple[str, ...]) -> None:
    todo = undo(kind, "/etc/x", was, now, ours)
    (said,) = todo.pop("said")
    assert said.startswith("warning [original-kept] spark-153: ")
    assert "/etc/x" in said
    assert not any(todo.values())  # neither acted on nor forgotten


UNIT = {"exists": True, "enabled": False, "active": False}


@pytest.mark.parametrize(
    ("kind", "name", "was", "now", "ours", "expected"),
    [
        ("sysctl", "vm.x", "10", "20", ("20",), {"sysctls": [{"name": "vm.x", "value": "10"}]}),
        ("directory", "/srv/x", GONE, OURS, (), {"directories": ["/srv/x"]}),
        ("directory", "/srv/x", WAS, OURS, (), {}),
        ("package", "earlyoom", None, "1.7", (), {"packages": ["earlyoom"]}),
        ("package", "earlyoom", "1.6", "1.7", (), {}),
        ("member", "docker/nvidia", False, True, (), {"members": [{"group": "docker", "user": "nvidia"}]}),
        ("member", "docker/nvidia", True, False, (), {}),
        ("linger", "nvidia", False, True, (), {"linger": ["nvidia"]}),
        (
            "unit", "x.service", UNIT, {**UNIT, "active": True}, (),
            {"units": [{"name": "x.service", "enabled": False, "active": False, "there": True}]},
        ),
        (
            "fstab", "/data", {"line": None, "mounted": False}, {"line": LINE, "mounted": True}, (LINE,),
            {"fstab": [{"path": "/data", "entry": {}, "unmount": True}]},
        ),
        (
            "fstab", "/data", {"line": "LABEL=d /data ext4 defaults 0 2", "mounted": True},
            {"line": LINE, "mounted": True}, (LINE,),
            {"fstab": [{
                "path": "/data", "unmount": False,
                "entry": {"src": "LABEL=d", "path": "/data", "fstype": "ext4", "opts": "defaults", "dump": "0",
                          "passno": "2"},
            }]},
        ),
    ],
)  # fmt: skip
def test_the_rest(kind: str, name: str, was: Any, now: Any, ours: tuple[str, ...], expected: dict[str, Any]) -> None:
    todo = undo(kind, name, was, now, ours)
    assert todo.pop("forget") == [{"kind": kind, "name": name}]
    assert {key: value for key, value in todo.items() if value} == expected


def test_a_formatted_disk_is_said_once_and_its_data_stays() -> None:
    todo = undo("disk", "/dev/nvme1n1 (S7)", None, None)
    (said,) = todo["said"]
    assert "warning [disk-formatted] spark-153: /dev/nvme1n1 (S7) was formatted on 2026-11-30" in said
    assert todo["forget"] == [{"kind": "disk", "name": "/dev/nvme1n1 (S7)"}]


def test_docker_stays_while_a_container_is_there_or_packages_are_not_to_be_removed() -> None:
    for more in ({"containers": 2}, {"packages": False}):
        todo = undo("package", "docker.io", None, "26.1", **more)
        assert "warning [package-kept] spark-153: docker.io was installed by us" in todo["said"][0]
        assert (todo["packages"], todo["forget"]) == ([], [])
    assert undo("package", "docker.io", None, "26.1")["packages"] == ["docker.io"]


@pytest.mark.parametrize(
    ("path", "notify"),
    [
        ("/etc/docker/daemon.json", ["Docker restarts"]),
        ("/etc/containerd/config.toml", ["Containerd restarts", "Docker restarts"]),
        ("/etc/systemd/system/docker.service.d/50-gb10-mounts.conf", ["Systemd knows its units"]),
        ("/etc/systemd/logind.conf.d/90-gb10.conf", ["Logind restarts"]),
        ("/etc/security/limits.d/90-gb10.conf", []),
    ],
)
def test_services_read_again_what_was_put_back(path: str, notify: list[str]) -> None:
    assert undo("file", path, GONE, OURS, (sha("ours"),))["notify"] == notify


def test_a_directory_goes_after_what_lies_in_it() -> None:
    names = ["/srv/a", "/srv/a/b", "/srv/a/b/c"]
    items = {f"directory:{n}": {"kind": "directory", "name": n, "was": GONE, "now": OURS, "ours": []} for n in names}
    assert undo_todo("spark-153", items, "/o", 0)["directories"] == names[::-1]
