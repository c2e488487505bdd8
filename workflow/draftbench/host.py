"""Facts and locks of this host: what dies with it, and what it shares between checkouts.

Everything here that outlives a process but not the machine lies in the run directory, on tmpfs where
there is one. `DRAFTBENCH_RUN_DIR` moves it; services under different run directories do not know of
each other.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from draftbench.errors import DraftbenchError

TMPFS = Path("/dev/shm")  # noqa: S108 - shared on purpose; what we make in it is ours alone
PR_SET_PDEATHSIG = 1
RUN_PID = "DRAFTBENCH_RUN_PID"  # of the Snakemake that a step belongs to
START_TICKS_FIELD = 22


def run_directory() -> Path:
    """The directory of states, tokens and locks; made, readable by its owner only, when missing."""
    chosen = os.environ.get("DRAFTBENCH_RUN_DIR")
    root = TMPFS if TMPFS.is_dir() else Path(tempfile.gettempdir())
    directory = Path(chosen) if chosen else root / f"draftbench-{os.getuid()}"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = directory.lstat().st_uid  # of a link itself: another user may have put one there
    if owner != os.getuid():
        raise DraftbenchError(
            f"expected {directory} to belong to user {os.getuid()}, it belongs to {owner}; "
            "set DRAFTBENCH_RUN_DIR to a directory of your own"
        )
    return directory


def sessions_directory() -> Path:
    """Holds the sessions of all runs under this run directory; a run empties it."""
    return run_directory() / "sessions"


def session_directory() -> Path:
    """Of one run, which is one invocation of Snakemake: shared with its steps by DRAFTBENCH_SESSION."""
    fresh = sessions_directory() / f"{time.time_ns()}-{os.getpid()}"
    return Path(os.environ.setdefault("DRAFTBENCH_SESSION", str(fresh)))


def activate_environment() -> None:
    """Have commands find the programs beside this interpreter first, as if its environment were activated."""
    here = str(Path(sys.executable).parent)
    if os.environ["PATH"].split(os.pathsep)[0] != here:
        os.environ["PATH"] = f"{here}{os.pathsep}{os.environ['PATH']}"


def boot_id() -> str:
    """Differs after every boot, so that a state written before it is known to be void."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def process_stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from `state` (field 3) on; None: no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None when it has ended (a zombie has)."""
    stat = process_stat(pid)
    if stat is None or stat[0] in "ZX":
        return None
    return int(stat[START_TICKS_FIELD - 3])


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, also by `kill -9`.

    A parent that ended before, while this process still imported its libraries, is known by RUN_PID.
    """
    parent = int(os.environ.get(RUN_PID, os.getppid()))
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if start_ticks(parent) is None:
        os.kill(os.getpid(), signal.SIGKILL)


def exclusive(path: Path, what: str) -> contextlib.AbstractContextManager[None]:
    """Hold a lock alone; the kernel drops it with this process.

    Args:
        path: the lock's file, which names the last holder; it stays.
        what: what the holder does, for the sentence of those who are refused.

    Raises:
        DraftbenchError: another process holds it, alone or with others; the sentence names its pid.
    """
    return _locked(path, what, fcntl.LOCK_EX)


def shared(path: Path, what: str) -> contextlib.AbstractContextManager[None]:
    """Hold the same lock beside others of this kind.

    Raises:
        DraftbenchError: another process holds it alone.
    """
    return _locked(path, what, fcntl.LOCK_SH)


@contextlib.contextmanager
def _locked(path: Path, what: str, kind: int) -> Iterator[None]:
    descriptor = _open_shared(path)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DraftbenchError(
                f"expected to be alone on this host, but {_holder(descriptor)} ({path}); "
                "wait for it, or end it"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {what}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """Who holds a lock, and what for. Of several that share it, the last to write may have ended."""
    pid, _, what = os.pread(descriptor, 256, 0).decode(errors="replace").strip().partition(" ")
    if pid.isdecimal() and start_ticks(int(pid)) is not None:
        return f"process {pid} {what or 'holds the lock'}"
    return "another process holds the lock"


def host_lock_path() -> Path:
    """One file for all users and checkouts of this host, unless DRAFTBENCH_RUN_DIR says otherwise."""
    if os.environ.get("DRAFTBENCH_RUN_DIR") or not TMPFS.is_dir():
        return run_directory() / "lock"
    return TMPFS / "draftbench.lock"


def _open_shared(path: Path) -> int:
    # In a sticky directory the kernel refuses O_CREAT for a file of another user.
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with contextlib.suppress(PermissionError):  # another user made it in between
            os.fchmod(descriptor, 0o666)
        return descriptor
