//! About how many bytes a copy will have, for those who watch it.
//!
//! **Rule.** Counting delays the copy by [`LIMIT`] at most, and keeps [`WAITING_MAX`] paths at most: of a larger tree there is
//! no answer. Errors are left to the copy.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use steadfs_rt::{Instant, now};
use steadfs_vfs::{Cx, FileSystem};

use super::walk::resolve;
use super::{DuOptions, Progress, ToolError, Usage};

const LIMIT: Duration = Duration::from_secs(1);
const WAITING_MAX: usize = 100_000;
/// Unit of the host's counts of blocks, in bytes.
const HOST_BLOCK: u64 = 512;

/// Ends a count that takes long.
struct Watch(Instant);

impl Progress for Watch {
    fn file(&mut self, _: &[u8], _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
    fn problem(&mut self, _: &ToolError) {}
    fn stopped(&self) -> bool {
        self.0.elapsed() > LIMIT
    }
}

/// The space in bytes that the tree at `path` takes on a volume. If `path` is a link, it is followed only if `follow`.
pub fn amount_on_volume(fs: &dyn FileSystem, cx: &Cx, path: &[u8], follow: bool) -> Option<u64> {
    let options = DuOptions {
        all: false,
        apparent: false,
        separate: false,
        max_depth: 0,
        count_links: false,
    };
    let mut usage = Usage::new(fs, cx, options, false);
    let top = resolve(fs, cx, path, follow).ok()?;
    let counted = usage.count_from((top, path), &mut Watch(now()), &mut |_, _| Ok(()));
    counted.ok().map(|()| usage.total)
}

/// The bytes of data of the tree at `path` on the host. A link that is named is followed.
pub fn amount_on_host(path: &Path) -> Option<u64> {
    let watch = Watch(now());
    let mut waiting: Vec<PathBuf> = vec![path.canonicalize().ok()?];
    let mut linked = BTreeSet::new();
    let mut total = 0_u64;
    while let Some(path) = waiting.pop() {
        if watch.stopped() || waiting.len() > WAITING_MAX {
            return None;
        }
        let Ok(found) = path.symlink_metadata() else {
            continue;
        };
        if found.is_dir() {
            let entries = path.read_dir().into_iter().flatten().flatten();
            waiting.extend(entries.take(WAITING_MAX).map(|entry| entry.path()));
        } else if found.is_file()
            && (found.nlink() == 1 || linked.insert((found.dev(), found.ino())))
        {
            let bytes = found.blocks().saturating_mul(HOST_BLOCK);
            total = total.saturating_add(found.len().min(bytes));
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_count_once_and_holes_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), vec![7; 10_000]).unwrap();
        fs::hard_link(top.join("a/b/file"), top.join("again")).unwrap();
        fs::write(top.join("a/small"), "small").unwrap();
        let hole = fs::File::create(top.join("hole")).unwrap();
        hole.set_len(1 << 40).unwrap();
        std::os::unix::fs::symlink("a/b/file", top.join("link")).unwrap();
        std::os::unix::fs::symlink("top", dir.path().join("way")).unwrap();
        assert_eq!(amount_on_host(&dir.path().join("way")), Some(10_005));
        assert_eq!(amount_on_host(&top.join("a/b/file")), Some(10_000));
        assert_eq!(amount_on_host(&top.join("none")), None);
    }
}
