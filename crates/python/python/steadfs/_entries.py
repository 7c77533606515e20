"""Names in directories, and the space of a volume."""

from __future__ import annotations

import stat as _stat
from typing import TYPE_CHECKING, NamedTuple, Optional

from ._stat import Stat

if TYPE_CHECKING:
    from ._volume import Volume


class Usage(NamedTuple):
    """Space and inodes of a volume."""

    #: The unit of the next three, in bytes.
    block_size: int
    blocks: int
    blocks_free: int
    #: Free blocks without those that are reserved for root.
    blocks_available: int
    inodes: int
    inodes_free: int
    #: Longest name in bytes.
    name_max: int

    @property
    def total(self) -> int:
        """Bytes of the volume."""
        return self.blocks * self.block_size

    @property
    def free(self) -> int:
        """Free bytes, without those that are reserved for root."""
        return self.blocks_available * self.block_size


class DirEntry:
    """A name in a directory, as ``os.DirEntry``. The type comes from the directory: it costs no further call."""

    __slots__ = ("_kind", "_stat", "_volume", "ino", "name", "path")

    def __init__(self, volume: Volume, path: str, ino: int, kind: int, stat: Optional[Stat] = None) -> None:
        self._volume = volume
        self._kind = kind
        self._stat = stat
        #: Inode number.
        self.ino = ino
        #: The path, which begins as that of the directory.
        self.path = path
        self.name = path.rpartition("/")[2]

    def __repr__(self) -> str:
        return f"<steadfs.DirEntry {self.path!r}>"

    def inode(self) -> int:
        return self.ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return _stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return _stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        return _stat.S_ISLNK(self._kind)

    def stat(self, *, follow_symlinks: bool = True) -> Stat:
        """The attributes, or with ``follow_symlinks`` those of a link's target."""
        if follow_symlinks and self.is_symlink():
            return self._volume.stat(self.path)
        if self._stat is None:
            self._stat = self._volume.stat(self.path, follow_symlinks=False)
        return self._stat

    def _mode(self, follow_symlinks: bool) -> int:
        """The type; 0 of a link that leads nowhere."""
        if not (follow_symlinks and self.is_symlink()):
            return self._kind
        try:
            return self._volume.stat(self.path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0
