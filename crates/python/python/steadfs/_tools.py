"""Images that are not opened: making, probing and checking volumes, listing partitions."""

from __future__ import annotations

import os
import re
from typing import Iterable, Mapping, NamedTuple, Optional, Union

from . import _steadfs

#: A path of the host, or an NBD URI.
Image = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
#: Options as ``-o`` of the program takes them: ``"noload,offset=1M"``, ``["noload", "offset=1M"]`` or
#: ``{"noload": None, "offset": "1M"}``.
Options = Union[str, Iterable[str], Mapping[str, object]]

_UNITS = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def image_path(image: Image) -> str:
    return os.fsdecode(image)


def option_list(options: Options) -> str:
    if isinstance(options, str):
        return options
    if isinstance(options, Mapping):
        options = [name if value is None else f"{name}={value}" for name, value in options.items()]
    return ",".join(options)


def partition_name(partition: Union[int, str, None]) -> Optional[str]:
    return None if partition is None else str(partition)


def size_in_bytes(size: Union[int, str]) -> int:
    """A number of bytes, or a text with a binary unit: 64M, 64MiB, 1.5G."""
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([BKMGT]?)(?:I?B)?", size.strip().upper())
    if not found:
        raise ValueError(f"not a size: {size!r}; write 64M or a number of bytes")
    return int(float(found[1]) * (1 << _UNITS[found[2]]))


def probe(image: Image, *, partition: Union[int, str, None] = None, options: Options = "") -> str:
    """The kind of the volume on an image: ``ext2``, ``ext3``, ``ext4`` or ``f2fs``. ``NoVolumeError`` names what else is there."""
    return _steadfs.probe(image_path(image), partition_name(partition), option_list(options))


class Partition(NamedTuple):
    """A partition of a disk, or a logical one of an Android super image."""

    number: int
    #: First byte; ``None`` in a container, where it has none.
    start: Optional[int]
    size: int
    #: Its type, by name where that is known.
    type: str
    name: str
    #: What was recognised in it.
    holds: Optional[str]
    is_volume: bool
    #: The label of the volume in it.
    label: str


class PartitionTable(NamedTuple):
    """The partitions of a disk."""

    #: ``GPT``, ``MBR`` or ``Android super``.
    scheme: str
    #: What is wrong with the table.
    flaw: Optional[str]
    partitions: list[Partition]


def partitions(image: Image) -> PartitionTable:
    """The partition table of a disk. ``OSError`` if it has none."""
    scheme, flaw, found = _steadfs.partitions(image_path(image))
    return PartitionTable(scheme, flaw, [Partition(*part) for part in found])


class CheckResult(NamedTuple):
    """What a check found."""

    #: The issues, a sentence each.
    issues: list[str]
    #: The number of issues beyond these.
    more: int
    #: Features of the volume that were not checked.
    skipped: list[str]

    @property
    def is_clean(self) -> bool:
        return not self.issues and not self.more


def check(image: Image, *, partition: Union[int, str, None] = None, options: Options = "") -> CheckResult:
    """Checks a volume. Nothing is changed; e2fsck(8) or fsck.f2fs(8) repair it."""
    return CheckResult(*_steadfs.check(image_path(image), partition_name(partition), option_list(options)))


def format(
    image: Image,
    size: Union[int, str, None] = None,
    kind: str = "ext4",
    *,
    partition: Union[int, str, None] = None,
    overwrite: bool = False,
    label: str = "",
    uuid: Optional[str] = None,
    features: str = "",
    block_size: Optional[int] = None,
    inodes: Optional[int] = None,
    inode_size: Optional[int] = None,
    reserved_percent: Optional[float] = None,
    root_owner: Optional[tuple[int, int]] = None,
) -> None:
    """Makes a volume of the kind ``ext2``, ``ext3``, ``ext4`` or ``f2fs``.

    ``size`` is that of an image that is made or extended, or of a volume smaller than its device: a number of bytes, or a text
    such as ``"64M"``. Options are those of mke2fs(8) and mkfs.f2fs(8). ``FileExistsError`` if there is anything on the image that is
    known, unless ``overwrite`` is set.
    """
    wanted = {
        "label": label,
        "uuid": uuid,
        "features": features,
        "block_size": block_size,
        "inodes": inodes,
        "inode_size": inode_size,
        "reserved_percent": reserved_percent,
        "root_owner": root_owner,
    }
    in_bytes = None if size is None else size_in_bytes(size)
    _steadfs.format(image_path(image), in_bytes, kind, partition_name(partition), overwrite, wanted)
