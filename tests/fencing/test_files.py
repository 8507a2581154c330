"""What is particular to files: what lies beside them, crashes in between, many writers."""

import os
import stat
import threading

import pytest

from dibs.core.errors import Damaged
from dibs.fencing import Applied, Conflict, Duplicate, Missing, Stale, files

from .processes import children


@pytest.fixture
def path(tmp_path):
    return tmp_path / "report 12.txt"


def beside(path):
    folder = path.with_name(f"{path.name}.fence")
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def test_a_file_that_is_not_there_is_made_unless_told_otherwise(path):
    assert files.read(path) is None
    assert files.guarded_write(path, b"x", 7, create=False) == Missing()
    assert files.guarded_write(path, b"x", 7, version="0") == Missing()
    assert isinstance(files.guarded_write(path, b"x", 7), Applied)
    assert path.read_bytes() == b"x"


def test_a_stamp_counts_although_the_file_is_not_there_yet(path):
    assert files.stamp(path, 8) == Applied()
    assert files.guarded_write(path, b"late", 7) == Stale(8)
    assert not path.exists()


def test_nothing_is_left_beside_it_but_the_fence_in_force(path):
    files.guarded_write(path, b"x", 6, step=1)
    files.guarded_write(path, b"x", 7, step=1)
    files.guarded_write(path, b"x", 6, step=2)
    assert beside(path) == ["7", "7.lock", "7.step"]
    files.stamp(path, 8)
    assert beside(path) == ["8"]
    files.guarded_write(path, b"x", 7)
    assert beside(path) == ["8"]


def test_it_may_be_named_by_a_link_or_by_a_path_that_goes_round(path, tmp_path):
    path.write_bytes(b"")
    link = tmp_path / "link"
    link.symlink_to(path)
    (tmp_path / "folder").mkdir()
    assert isinstance(files.guarded_write(link, b"x", 8), Applied)
    assert files.guarded_write(tmp_path / "folder" / ".." / path.name, b"y", 7) == Stale(8)
    assert link.is_symlink()
    assert path.read_bytes() == b"x"


def test_its_permissions_stay(path):
    path.write_bytes(b"")
    path.chmod(0o640)
    files.guarded_write(str(path), b"x", 7)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_files_beside_each_other_have_nothing_to_do_with_each_other(tmp_path):
    for number, name in enumerate(("a", "a.7", "7", "a.fence.txt"), start=1):
        files.guarded_write(tmp_path / name, name.encode(), number)
    for number, name in enumerate(("a", "a.7", "7", "a.fence.txt"), start=1):
        assert files.read(tmp_path / name).fence == number
        assert (tmp_path / name).read_text() == name


def test_a_damaged_record_is_said_and_not_guessed(path):
    files.guarded_write(path, b"x", 7, step=1)
    (path.with_name(f"{path.name}.fence") / "7.step").write_text("{")
    with pytest.raises(Damaged, match=r"7\.step"):
        files.guarded_write(path, b"y", 7, step=2)
    assert files.stamp(path, 8) == Applied(files.read(path).version)
    assert isinstance(files.guarded_write(path, b"y", 8, step=1), Applied)


def test_a_folder_that_is_not_there_is_the_callers_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.guarded_write(tmp_path / "nowhere" / "x", b"x", 7)
    assert list(tmp_path.iterdir()) == []


# Crashes


def test_a_fence_is_raised_for_good_folder_and_all(path, monkeypatch):
    """A folder that is not synced into the one it is in may be gone after a loss of power."""
    synced = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    folder = path.with_name(f"{path.name}.fence")
    assert files.stamp(path, 7) == Applied()
    assert synced == [folder.stat().st_ino, path.parent.stat().st_ino]


def test_a_step_whose_writer_died_before_the_rename_is_done_again(path):
    files.guarded_write(path, b"before", 7)
    with children("writer", "file", str(path)) as [writer]:
        writer.tell({"do": "die", "value": "x", "fence": 7, "step": 1, "after": False})
        assert writer.process.wait(30) == -9
    assert path.read_bytes() == b"before"
    assert isinstance(files.guarded_write(path, b"x", 7, step=1), Applied)
    assert path.read_bytes() == b"x"


def test_a_step_whose_writer_died_after_the_rename_is_a_duplicate(path):
    files.guarded_write(path, b"before", 7)
    with children("writer", "file", str(path)) as [writer]:
        writer.tell({"do": "die", "value": "x", "fence": 7, "step": 1, "after": True})
        assert writer.process.wait(30) == -9
    assert path.read_bytes() == b"x"
    assert files.guarded_write(path, b"again", 7, step=1) == Duplicate()
    assert isinstance(files.guarded_write(path, b"y", 7, step=2), Applied)


def test_what_a_dead_writer_left_is_gone_with_the_next_fence(path):
    with children("writer", "file", str(path)) as [writer]:
        writer.tell({"do": "die", "value": "x", "fence": 7, "step": None, "after": False})
        assert writer.process.wait(30) == -9
    assert any(name.endswith(".part") for name in beside(path))
    files.stamp(path, 8)
    assert beside(path) == ["8"]


def test_who_holds_the_turn_of_an_old_fence_keeps_nobody_waiting(path):
    files.guarded_write(path, b"x", 7)
    with files._FencedFile(path).turn(7):
        assert isinstance(files.stamp(path, 8), Applied)
        assert isinstance(files.guarded_write(path, b"y", 8), Applied)


# Threads


def test_threads_of_one_holder_lose_no_update(path):
    files.guarded_write(path, b"0", 7)

    def add() -> None:
        for _ in range(10):
            while True:
                seen = files.read(path)
                value = str(int(seen.value) + 1).encode()
                outcome = files.guarded_write(path, value, 7, version=seen.version)
                if not isinstance(outcome, Conflict):
                    assert isinstance(outcome, Applied)
                    break

    threads = [threading.Thread(target=add) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert path.read_bytes() == b"60"
    assert not any(name.endswith(".part") for name in beside(path))
