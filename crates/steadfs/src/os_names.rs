//! Names and paths of a volume, which are bytes, as those of the standard library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The bytes of a path. On Windows a path for a volume has slashes, too.
pub(crate) fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

/// A name or link of a volume.
#[cfg(unix)]
pub(crate) fn os_string(name: Vec<u8>) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(name)
}

/// A name or link of a volume. What is not UTF-8 becomes replacement characters: the host has no names of bytes.
#[cfg(not(unix))]
pub(crate) fn os_string(name: Vec<u8>) -> OsString {
    String::from_utf8_lossy(&name).into_owned().into()
}

/// A path on a volume.
pub(crate) fn os_path(path: Vec<u8>) -> PathBuf {
    os_string(path).into()
}

/// The path of `name` in `folder` on a volume, where the separator is a slash on every host. An absolute `name` is the path.
pub(crate) fn join(folder: &Path, name: &Path) -> PathBuf {
    let (front, name) = (bytes_of(folder), bytes_of(name));
    if front.is_empty() || name.starts_with(b"/") {
        return os_path(name.to_vec());
    }
    let separator: &[u8] = if front.ends_with(b"/") { b"" } else { b"/" };
    os_path([front, separator, name].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_as_on_unix() {
        for (folder, name) in [
            ("/", "a"),
            ("/a/b", "c d"),
            ("", "a"),
            ("a", "/b"),
            ("a/", "b"),
        ] {
            let (folder, name) = (Path::new(folder), Path::new(name));
            let joined = join(folder, name);
            assert_eq!(bytes_of(&joined), bytes_of(&folder.join(name)));
        }
    }
}
