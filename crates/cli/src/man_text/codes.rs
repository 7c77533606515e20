//! Exit codes of several commands.

use super::Codes;

/// Of most commands.
pub(super) const PLAIN: Codes = &[
    ("0", "everything was done"),
    ("1", "it failed, or a part of it did; messages say what"),
    ("2", "the command line was not understood"),
    (
        "128+N",
        "signal N ended it; what it had begun is cleaned up",
    ),
];
/// Of mount, as mount(8) has them.
pub(super) const MOUNTING: Codes = &[
    ("0", "success"),
    ("1", "wrong call, or missing permission"),
    (
        "2",
        "a resource of the system is missing, such as /dev/fuse or memory",
    ),
    (
        "32",
        "the volume could not be mounted; the message says why",
    ),
];
/// Of umount, as umount(8) has them.
pub(super) const UNMOUNTING: Codes = &[
    ("0", "the volume is closed, and all data is on the device"),
    ("1", "wrong call, or missing permission"),
    ("2", "a resource of the system is missing"),
    (
        "32",
        "it is not unmounted, or was closed without all data; the message says which",
    ),
];
/// Of check, as fsck(8) has them.
pub(super) const CHECKING: Codes = &[
    ("0", "the volume is clean"),
    ("4", "errors were found; nothing was changed"),
    ("8", "the volume could not be checked"),
    ("16", "wrong call"),
];
