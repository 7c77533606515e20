"""ext2, ext3, ext4 and f2fs volumes without a driver: make, open, read, write and check them.

>>> import steadfs
>>> steadfs.format("disk.img", "64M")
>>> with steadfs.open("disk.img", "r+") as volume:
...     _ = (volume / "hello").write_text("Hello")
>>> with steadfs.open("disk.img") as volume:
...     print((volume / "hello").read_text())
Hello
"""

from __future__ import annotations

from ._entries import DirEntry, Usage
from ._files import RawFile
from ._paths import Path
from ._stat import Stat
from ._steadfs import CorruptError, NoVolumeError, __version__
from ._tools import CheckResult, Partition, PartitionTable, check, format, partitions, probe
from ._volume import Volume, open

__all__ = [
    "CheckResult",
    "CorruptError",
    "DirEntry",
    "NoVolumeError",
    "Partition",
    "PartitionTable",
    "Path",
    "RawFile",
    "Stat",
    "Usage",
    "Volume",
    "__version__",
    "check",
    "format",
    "open",
    "partitions",
    "probe",
]
