"""Locks between processes."""

from pathlib import Path

from filelock import FileLock, Timeout

from coevolve.errors import UserError
from coevolve.storage.files import disk_problem, is_disk_problem


class ProcessLock:
    """An exclusive lock on a file; the kernel releases it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # filelock's fallback, a marker file, would outlive a killed process.
        self._lock = FileLock(path, fallback_to_soft=False, thread_local=False)

    def acquire(self, *, wait: bool = False) -> bool:
        """Take the lock and return True; without `wait`, return False if another process holds it.

        Raises `UserError` where the file system has no locks, and where the file cannot be made.
        """
        for _ in range(100):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock.acquire(blocking=wait)
            except Timeout:
                return False
            except FileNotFoundError:
                continue  # the previous holder removed the folder
            except OSError as error:
                if is_disk_problem(error):
                    raise UserError(disk_problem(error, self.path)) from None
                raise UserError(f"{self.path}: no lock ({error.strerror}); mount the disk with `flock`.") from None
            return True
        raise UserError(f"{self.path}: cannot be made; correct the path, then run again.")

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()
