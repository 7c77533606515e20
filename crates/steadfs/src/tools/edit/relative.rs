//! The way from one directory of a volume to a file, for `ln -r`.
//!
//! **Rule.** Both are followed through all symbolic links on the way, as realpath(1) does, so that `..` in the text leads where
//! it says. The operand need not exist.

use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileKind, FileSystem, FsError, Result};

use super::super::walk::child;

/// Most links that are followed, as by the kernel.
const LINKS_MAX: usize = 40;

/// The text of a link at `link` that leads to `operand`.
pub(super) fn way(fs: &dyn FileSystem, cx: &Cx, operand: &[u8], link: &[u8]) -> Result<Vec<u8>> {
    let end = link.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let around = link[..end].iter().rposition(|b| *b == b'/');
    let from = real(fs, cx, around.map_or(&b"/"[..], |at| &link[..at]))?;
    let to = real(fs, cx, operand)?;
    let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[common..].iter().map(|_| &b".."[..]);
    let down = to[common..].iter().map(|name| &name[..]);
    let names: Vec<&[u8]> = up.chain(down).collect();
    match names.is_empty() {
        true => Ok(b".".to_vec()),
        false => Ok(names.join(&b"/"[..])),
    }
}

/// The names on the way from the root to `path`, of which none is a symbolic link.
fn real(fs: &dyn FileSystem, cx: &Cx, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let names = path.split(|b| *b == b'/').rev();
        names
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect()
    };
    let mut rest = names(path);
    let mut way: Vec<(Vec<u8>, Option<InodeNo>)> = Vec::new();
    let mut links = 0;
    while let Some(name) = rest.pop() {
        match &name[..] {
            b"." => continue,
            b".." => {
                way.pop();
                continue;
            }
            _ => {}
        }
        let dir = match way.last() {
            None => Some(fs.root()),
            Some((_, ino)) => *ino,
        };
        let found = match dir.map(|dir| child(fs, cx, dir, &name)) {
            None | Some(Err(FsError::NotFound | FsError::NotDir)) => None,
            Some(found) => Some(found?),
        };
        match found {
            Some(found) if found.attr().kind == FileKind::Symlink => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(FsError::Loop);
                }
                let text = fs.readlink(cx, found.ino())?;
                if text.starts_with(b"/") {
                    way.clear();
                }
                rest.extend(names(&text));
            }
            found => way.push((name, found.map(|found| found.ino()))),
        }
    }
    Ok(way.into_iter().map(|(name, _)| name).collect())
}
