//! Copying the tree of an archive to a new volume.
//!
//! **Rule.** The calls are those of a copy of the same tree from the host (`copy_in`), in the same order, so that a
//! reproducible volume has the same bytes from both.

use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileKind, FileSystem};

use super::copy_in::{HOLE_BYTES, room, runs};
use super::copying::{CopyOptions, Log, Paths, Progress, Report};
use super::maker::{CopyTarget, Dir, Kept, Maker, Node, copying};
use super::output::Output;
use super::walk::Held;
use super::{AtHost, CHUNK, Result};
use crate::owners::OwnerRules;
use crate::tar::{self, TarTree};

/// Copies `tree` to the root of the volume. Attributes, durability and errors are as in [`copy_in`](super::copy_in).
///
/// # Errors
/// Those of a copy that ends.
pub fn tree_in(
    fs: &dyn FileSystem,
    cx: &Cx,
    tree: &TarTree,
    (options, rules): (CopyOptions, Option<&OwnerRules>),
    progress: &mut dyn Progress,
) -> Result<Report> {
    let cx = &copying(cx);
    let mut copier = Copier {
        maker: Maker {
            fs,
            cx,
            options,
            rules,
        },
        tree,
        log: Log::new(progress),
        first_names: BTreeMap::new(),
    };
    let copied = copier.all();
    let settled = copier.log.settle(fs);
    copied.and(settled)?;
    Ok(copier.log.report)
}

/// A directory that is being filled.
struct Frame<'a, 't> {
    dir: Dir<'a>,
    node: &'t tar::Node,
    entries: std::collections::btree_map::Iter<'t, Vec<u8>, usize>,
    paths: super::copying::Lengths,
}

struct Copier<'a, 't, 'p> {
    maker: Maker<'a>,
    tree: &'t TarTree,
    log: Log<'p>,
    /// The copies of files with several names.
    first_names: BTreeMap<usize, Held<'a>>,
}

impl<'a, 't> Copier<'a, 't, '_> {
    fn all(&mut self) -> Result<()> {
        let mut paths = Paths {
            source: b".".to_vec(),
            target: b"/".to_vec(),
        };
        let top = CopyTarget {
            into: self.maker.fs.root(),
            name: b"",
            path: b"/",
            top: true,
            source: None,
            later: false,
        };
        let mut stack = vec![self.enter(self.tree.root(), &paths, &top)?];
        let mut end = Ok(());
        while let Some(frame) = stack.last_mut() {
            paths.back_to(frame.paths);
            // A stopped copy still finishes the directories that it is in.
            let next = end.is_ok().then(|| frame.entries.next()).flatten();
            let Some((name, &number)) = next else {
                let is_root = frame.dir.held.ino() == self.maker.fs.root();
                if !is_root || frame.node.is_member || self.maker.rules.is_some() {
                    // Last, because filling changes its times, and a default ACL would be inherited.
                    self.keep(frame.dir.held.ino(), frame.node, &paths.target);
                }
                stack.pop();
                continue;
            };
            paths.push(name);
            let node = self.tree.node(number);
            let spot = CopyTarget {
                into: frame.dir.held.ino(),
                name,
                path: &paths.target,
                top: false,
                source: None,
                later: node.names == 1 && frame.dir.is_free(name),
            };
            let done = match node.kind {
                FileKind::Directory => self
                    .enter(node, &paths, &spot)
                    .map(|frame| stack.push(frame)),
                _ => self.file(number, &paths.source, spot),
            };
            end = done.or_else(|error| self.log.failed(error));
        }
        end
    }

    fn enter(
        &mut self,
        node: &'t tar::Node,
        paths: &Paths,
        spot: &CopyTarget<'_>,
    ) -> Result<Frame<'a, 't>> {
        self.log.begin(&paths.source, spot.path)?;
        let dir = self.maker.dir(spot)?;
        self.log.report.files += 1;
        Ok(Frame {
            dir,
            node,
            entries: node.entries.iter(),
            paths: paths.lengths(),
        })
    }

    fn file(&mut self, number: usize, source: &[u8], spot: CopyTarget<'_>) -> Result<()> {
        let node = self.tree.node(number);
        self.log.begin(source, spot.path)?;
        if let Some(first) = self.first_names.get(&number) {
            self.maker.link(first.ino(), &spot)?;
            self.log.report.files += 1;
            return Ok(());
        }
        let held = match node.kind {
            FileKind::Regular => {
                let (maker, tree) = (self.maker, self.tree);
                let read = |output: &mut Output<'_, '_>, log: &mut Log<'_>| {
                    content(tree, node, maker.options.latest.is_some(), output, log)
                };
                maker.regular(spot, &mut self.log, read, |_| kept(node))?
            }
            _ => self.special(node, &spot)?,
        };
        self.log.report.files += 1;
        if let Some(held) = held.filter(|_| node.names > 1) {
            self.first_names.insert(number, held);
        }
        Ok(())
    }

    fn special(&mut self, node: &tar::Node, spot: &CopyTarget<'_>) -> Result<Option<Held<'a>>> {
        let (major, minor) = node.device;
        let made = Node {
            kind: node.kind,
            rdev: (minor & 0xff) | (major << 8) | ((minor & 0xf_ff00) << 12),
            target: &node.target,
        };
        self.maker.special(&made, spot, kept(node), &mut self.log)
    }

    fn keep(&mut self, ino: InodeNo, node: &tar::Node, path: &[u8]) {
        self.maker.keep(ino, kept(node), path, &mut self.log);
    }
}

/// Copies the content of a regular file. Returns its size.
fn content(
    tree: &TarTree,
    node: &tar::Node,
    even: bool,
    output: &mut Output<'_, '_>,
    log: &mut Log<'_>,
) -> Result<u64> {
    let mut buffer = Vec::new();
    let mut at = 0;
    while let Some((start, end)) = node.next_data(at) {
        at = if even {
            start - start % HOLE_BYTES
        } else {
            start
        };
        while at < end {
            let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
            let n = tree.read_content(node, room(&mut buffer, want), at);
            let n = n.on_host(&tree.name)?;
            let written = match even {
                true => runs(&buffer[..n]),
                false => std::iter::once(0..n).collect(),
            };
            for run in written {
                output.write(at + run.start as u64, &buffer[run])?;
            }
            at += n as u64;
            log.bytes(n)?;
        }
    }
    Ok(node.size)
}

fn kept(node: &tar::Node) -> Kept {
    Kept {
        kind: node.kind,
        perm: node.perm,
        uid: node.uid,
        gid: node.gid,
        times: node.times,
        xattrs: node.xattrs.clone(),
    }
}
