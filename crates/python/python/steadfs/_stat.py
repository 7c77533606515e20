"""Attributes of a file."""

from __future__ import annotations

import stat as _stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from ._steadfs import _Stat


@dataclass(frozen=True)
class Stat:
    """The attributes of a file, named as those of ``os.stat_result``. Times are integers in nanoseconds; ``st_atime``,
    ``st_mtime`` and ``st_ctime`` are the same in seconds."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    #: Space used, in units of 512 bytes.
    st_blocks: int
    st_blksize: int
    #: The number of a device node, 0 of another file.
    st_rdev: int
    #: Flags, as lsattr(1) shows them (``FS_*_FL``).
    st_flags: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int
    #: Time of birth, where the format keeps it.
    st_birthtime_ns: Optional[int]

    @property
    def st_atime(self) -> float:
        return self.st_atime_ns / 10**9

    @property
    def st_mtime(self) -> float:
        return self.st_mtime_ns / 10**9

    @property
    def st_ctime(self) -> float:
        return self.st_ctime_ns / 10**9

    @property
    def st_birthtime(self) -> Optional[float]:
        return None if self.st_birthtime_ns is None else self.st_birthtime_ns / 10**9

    def is_dir(self) -> bool:
        return _stat.S_ISDIR(self.st_mode)

    def is_file(self) -> bool:
        return _stat.S_ISREG(self.st_mode)

    def is_symlink(self) -> bool:
        return _stat.S_ISLNK(self.st_mode)


def _time(seconds_and_nanoseconds: tuple[int, int]) -> int:
    seconds, nanoseconds = seconds_and_nanoseconds
    return seconds * 10**9 + nanoseconds


def stat_of(found: _Stat) -> Stat:
    """From what the extension returns."""
    main, rest, (accessed, modified, changed, born) = found
    birth = None if born is None else _time(born)
    return Stat(*main, *rest, _time(accessed), _time(modified), _time(changed), birth)
