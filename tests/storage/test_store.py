import hashlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from coevolve.errors import UserError
from coevolve.records.episodes import Message
from coevolve.storage import files, folders, jsonl, locks


def message(number: int) -> Message:
    return Message(role="user", content=f"{number} " + "x" * 5000)


def test_a_killed_writer_leaves_whole_records_only(tmp_path):
    """kill -9 at random moments: what a reader accepts is always a prefix of what was written."""
    path = tmp_path / "journal.jsonl"
    script = textwrap.dedent(f"""
        from pathlib import Path
        from coevolve.storage.jsonl import Journal
        from coevolve.records.episodes import Message
        journal = Journal(Path({str(path)!r}), Message)
        number = len(journal.records)
        while True:
            journal.append(Message(role="user", content=f"{{number}} " + "x" * 5000))
            number += 1
    """)
    for round_ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", script])
        size = path.stat().st_size if path.exists() else 0
        while not path.exists() or path.stat().st_size < size + 20_000:
            assert writer.poll() is None
            time.sleep(0.003 * (round_ + 1))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        journal = jsonl.Journal(path, Message)
        assert journal.records == [message(number) for number in range(len(journal.records))]
        assert journal.records
        journal.close()


@pytest.mark.parametrize("cut", [1, 7, 2500, 5020])
def test_a_torn_last_line_is_cut_off_and_written_again(tmp_path, cut):
    path = tmp_path / "journal.jsonl"
    jsonl.write(path, [message(0), message(1)])
    path.write_bytes(path.read_bytes()[:-cut])
    journal = jsonl.Journal(path, Message)
    assert journal.records == [message(0)]
    journal.append(message(1))
    journal.close()
    assert jsonl.read(path, Message) == [message(0), message(1)]


def test_a_reader_refuses_a_half_record_by_file_and_line_and_a_missing_file(tmp_path):
    path = tmp_path / "records.jsonl"
    with pytest.raises(UserError, match="no such file; run the stage that makes it"):
        jsonl.read(path, Message)
    jsonl.write(path, [message(0), message(1)])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"records\.jsonl: line 2 is not a valid Message"):
        jsonl.read(path, Message)


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), folders.directory(out) as folder:  # noqa: PT012
        (folder / "one").write_text("1")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with folders.directory(out) as folder:
        (folder / "one").write_text("1")
    with folders.directory(out) as folder:
        (folder / "two").write_text("2")
    assert [path.name for path in out.iterdir()] == ["two"]


WRITER = """
import os, sys
from pathlib import Path
from coevolve.storage import files, folders
out, number = Path(sys.argv[1]), sys.argv[2]
with folders.directory(out) as folder:
    (folder / "first").write_text(number)
    print("inside", flush=True)
    sys.stdin.readline()
    (folder / "second").write_text(number)
for _ in range(100):
    with folders.directory(out) as folder:
        for name in ("first", "second"):
            (folder / name).write_text(number)
    files.write_bytes(out.with_suffix(".txt"), number.encode() * 100_000)
    assert len(set(out.with_suffix(".txt").read_text())) == 1
"""


def test_processes_that_write_one_folder_and_one_file_at_once_lose_nothing(tmp_path):
    """All are inside of the block at the same time; each ends well, and the last one's content stays whole."""
    out = tmp_path / "out"
    command = [sys.executable, "-c", WRITER, str(out)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, number], **pipes) for number in "123"]
    assert [writer.stdout.readline() for writer in writers] == ["inside\n"] * 3
    killed = subprocess.Popen([*command, "4"], **pipes)
    assert killed.stdout.readline() == "inside\n"
    killed.kill()
    killed.communicate()
    assert [(writer.communicate("\n")[1], writer.returncode) for writer in writers] == [("", 0)] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.txt"], "the killed one's is deleted, too"
    assert len({(out / name).read_text() for name in ("first", "second")}) == 1


HOLDER = """
import sys, time
from pathlib import Path
from coevolve.storage.locks import ProcessLock
lock = ProcessLock(Path(sys.argv[1]))
assert lock.acquire(wait=True)
print("held", flush=True)
time.sleep(600)
"""


def holder(path: Path) -> "subprocess.Popen[str]":
    """A process that acquires the lock at `path` and keeps it."""
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)


def test_a_lock_is_held_by_one_process_and_free_when_that_is_killed(tmp_path):
    path = tmp_path / "new/lock"
    with holder(path) as first:
        assert first.stdout.readline() == "held\n"
        lock = locks.ProcessLock(path)
        assert not lock.acquire()
        first.send_signal(signal.SIGKILL)
        assert lock.acquire(wait=True)
    with holder(path) as second:
        time.sleep(1)
        assert second.poll() is None
        lock.release()
        assert second.stdout.readline() == "held\n"
        assert not lock.acquire()
        second.kill()


def test_a_lock_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file/lock", Path("/proc/none/lock")):
        with pytest.raises(UserError, match=f"^{path}: cannot be (written|made)"):
            locks.ProcessLock(path).acquire()


def test_a_folder_that_a_user_names_is_replaced_if_it_has_nothing_else(tmp_path):
    for name in ("README.md", "thesis"):
        (tmp_path / f"out/{name}").mkdir(parents=True)
    with pytest.raises(UserError, match=r"out: has thesis, which is not of this export; name another folder"):
        folders.named_directory(tmp_path / "out", ["README.md"])
    (tmp_path / "out/thesis").rmdir()
    with folders.named_directory(tmp_path / "out", ["README.md"]) as folder:
        (folder / "new").mkdir()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    with pytest.raises(UserError, match=r"^\.: cannot be replaced as a whole"):
        folders.named_directory(Path(), [])


def test_a_waiting_process_gets_the_lock_though_the_holder_removes_the_folder(tmp_path):
    path = tmp_path / "scratch/lock"
    lock = locks.ProcessLock(path)
    assert lock.acquire()
    with holder(path) as waiting:
        time.sleep(1)
        shutil.rmtree(path.parent)
        lock.release()
        assert waiting.stdout.readline() == "held\n"
        assert not locks.ProcessLock(path).acquire()
        waiting.kill()


def test_a_lock_does_not_outlive_its_process_in_a_child(tmp_path):
    path = tmp_path / "lock"
    script = HOLDER.replace("time.sleep(600)", "import subprocess; subprocess.Popen(['sleep', '60']); time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "held\n"
        (child,) = until(lambda: psutil.Process(parent.pid).children())
        parent.kill()
        assert locks.ProcessLock(path).acquire(wait=True)
        assert child.is_running()
        child.kill()


def until(condition):
    """The first true value of `condition`."""
    while not (value := condition()):
        time.sleep(0.01)
    return value


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    sentence = r"out: cannot be written \(No space left on device\); make room"
    with pytest.raises(UserError, match=sentence), folders.directory(tmp_path / "out") as folder:  # noqa: PT012
        (folder / "records.jsonl").symlink_to("/dev/full")
        (folder / "records.jsonl").write_bytes(message(0).to_json().encode())
    assert list(tmp_path.iterdir()) == []


def test_directory_hash_follows_names_and_contents_but_not_hidden_files(tmp_path):
    (tmp_path / "a").write_text("1")
    first = files.sha256(tmp_path)
    (tmp_path / ".hidden").write_text("x")
    assert files.sha256(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    second = files.sha256(tmp_path)
    assert second != first
    (tmp_path / "LICENSE").write_text("of a")
    assert files.sha256(tmp_path) != second == files.sha256(tmp_path, without=("LICENSE",))


def test_directory_hash_depends_neither_on_the_order_of_the_file_system_nor_on_the_folders_place(tmp_path, monkeypatch):
    hidden = tmp_path / ".cache" / "policy"
    for folder, names in ((tmp_path / "policy", "abc"), (hidden, "cba")):
        (folder / "sub").mkdir(parents=True)
        for name in names:
            (folder / name).write_text(name)
            (folder / "sub" / name).write_text(name)
    expected = files.sha256(tmp_path / "policy")
    listing = "".join(f"{name} {hashlib.sha256(name[-1].encode()).hexdigest()}\n" for name in FILES)
    assert expected == hashlib.sha256(listing.encode()).hexdigest()
    assert files.sha256(hidden) == expected
    rglob = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, pattern: reversed(list(rglob(self, pattern))))
    assert files.sha256(tmp_path / "policy") == expected


FILES = ("a", "b", "c", "sub/a", "sub/b", "sub/c")
