//! The hash index of a directory (htree): descent from a name's hash to its leaf, and growth.
//!
//! The index grows by steps, each of which adds one block and leaves a consistent tree: split the leaf, or else the
//! lowest node whose parent has room, or else add a level below the root. The caller searches again after each step.

use std::sync::Arc;

use steadfs_cache::MetaBuf;
use steadfs_vfs::{FsError, InodeFlags, Result};

use super::walk::Walk;
use super::wanted::Wanted;
use super::{Dir, Entry, Search};
use crate::disk::dir_entry::{self, DirLayout, Packer, RawEntry};
use crate::disk::features::Incompat;
use crate::disk::hash::{HashKind, NameHash};
use crate::disk::htree::{self, DxEntry, DxNode, DxNodeMut, RootInfo};
use crate::disk::{self, Ino};
use crate::inode::Inode;
use crate::txn::Handle;
use crate::verified;

/// A node on the path to a leaf, and the child that the path follows.
pub(super) struct Step {
    buf: Arc<MetaBuf>,
    at: u16,
}

/// The path from the root to a leaf.
pub(super) struct Path {
    info: RootInfo,
    steps: Vec<Step>,
    /// The leaf's block of the directory.
    pub(super) leaf: u32,
}

impl Path {
    /// How the index hashes names.
    pub(super) fn hash_kind(&self) -> HashKind {
        self.info.hash
    }

    /// Nodes from the root to the leaf.
    #[cfg(test)]
    pub(super) fn depth(&self) -> usize {
        self.steps.len()
    }
}

/// Whether a block below the root is a node of the index (or an empty leaf, which looks the same
/// where there are no checksums): one free entry over the whole block.
pub(super) fn is_index_block(layout: &DirLayout, block: &[u8]) -> bool {
    let rec_len = layout.decode_rec_len(u16::from_le_bytes([block[4], block[5]]));
    block[..4] == [0; 4] && rec_len == layout.block_size
}

impl Dir<'_> {
    pub(super) fn root(&self, core: &disk::Inode) -> Result<(Arc<MetaBuf>, RootInfo)> {
        let buf = self.block(core, 0)?;
        let bad = self.bad(buf.block());
        let data = buf.data();
        let info = buf
            .verify_once(verified::DIR_ROOT, |block| {
                htree::root_dots(&self.layout, block)?;
                DxNode::parse_root(&self.layout, self.seed, block).map(|_| ())
            })
            .and_then(|()| htree::root_info(self.fs.geo(), &data))
            .map_err(bad)?;
        drop(data);
        Ok((buf, info))
    }

    fn node(&self, core: &disk::Inode, n: u32) -> Result<Arc<MetaBuf>> {
        if n == 0 {
            return Err(self.corrupt("the index leads back to its root"));
        }
        let buf = self.block(core, n)?;
        buf.verify_once(verified::DIR_NODE, |block| {
            DxNode::parse_node(&self.layout, self.seed, block).map(|_| ())
        })
        .map_err(self.bad(buf.block()))?;
        Ok(buf)
    }

    /// A verified node of the tree; the root is at depth 0.
    fn view<'b>(&self, block: &'b [u8], depth: usize) -> Result<DxNode<'b>> {
        let node = if depth == 0 {
            DxNode::verified_root(&self.layout, block)
        } else {
            DxNode::verified_node(&self.layout, block)
        };
        node.map_err(|e| e.in_inode(self.ino).into())
    }

    /// How this directory's names are hashed, with an index or without.
    pub(super) fn hash_kind(&self, core: &disk::Inode) -> Result<HashKind> {
        if self.is_indexed(core) {
            return Ok(self.root(core)?.1.hash);
        }
        Ok(self.new_hash_kind())
    }

    /// How names would be hashed in a new index.
    pub(super) fn new_hash_kind(&self) -> HashKind {
        match self.layout.has_hashes {
            true => HashKind::SipHash,
            false => self.fs.geo().hash.kind,
        }
    }

    /// The path to the first leaf of names with this hash.
    pub(super) fn descend(&self, core: &disk::Inode, major: u32) -> Result<Path> {
        let (buf, info) = self.root(core)?;
        self.descend_from(core, buf, info, major)
    }

    fn descend_from(
        &self,
        core: &disk::Inode,
        root: Arc<MetaBuf>,
        info: RootInfo,
        major: u32,
    ) -> Result<Path> {
        let mut steps = Vec::with_capacity(3);
        let mut buf = root;
        loop {
            let depth = steps.len();
            let (at, child) = self.view(&buf.data(), depth)?.child_for(major);
            steps.push(Step { buf, at });
            if depth == usize::from(info.indirect_levels) {
                return Ok(Path {
                    info,
                    steps,
                    leaf: child.block,
                });
            }
            buf = self.node(core, child.block)?;
        }
    }

    /// The lowest hash of the leaf after the path's, if there is one.
    pub(super) fn bound(&self, path: &Path) -> Result<Option<u32>> {
        for (depth, step) in path.steps.iter().enumerate().rev() {
            let data = step.buf.data();
            let node = self.view(&data, depth)?;
            if step.at + 1 < node.len() {
                return Ok(Some(node.entry(step.at + 1).hash));
            }
        }
        Ok(None)
    }

    /// Moves the path to the next leaf; the leaf's lowest hash, or `None` after the last.
    pub(super) fn advance(&self, core: &disk::Inode, path: &mut Path) -> Result<Option<u32>> {
        let levels = path.steps.len();
        let mut bound = None;
        while bound.is_none() {
            let Some(mut step) = path.steps.pop() else {
                return Ok(None);
            };
            let data = step.buf.data();
            let node = self.view(&data, path.steps.len())?;
            if step.at + 1 < node.len() {
                step.at += 1;
                let entry = node.entry(step.at);
                path.leaf = entry.block;
                bound = Some(entry.hash);
                path.steps.push(step);
            }
        }
        while path.steps.len() < levels {
            let buf = self.node(core, path.leaf)?;
            path.leaf = self.view(&buf.data(), path.steps.len())?.entry(0).block;
            path.steps.push(Step { buf, at: 0 });
        }
        Ok(bound)
    }

    /// The path's leaf, verified.
    pub(super) fn leaf_of(&self, core: &disk::Inode, path: &Path) -> Result<Arc<MetaBuf>> {
        if path.leaf == 0 {
            return Err(self.corrupt("the index leads back to its root"));
        }
        self.leaf(core, path.leaf)
    }

    pub(super) fn find_indexed(
        &self,
        core: &disk::Inode,
        name: &Wanted<'_>,
    ) -> Result<Option<Entry>> {
        let (buf, info) = self.root(core)?;
        let hash = self.hash_wanted(info.hash, name)?;
        let path = self.descend_from(core, buf, info, hash.major)?;
        if let Some(entry) = self.find_in(self.leaf_of(core, &path)?, name)? {
            return Ok(Some(entry));
        }
        self.find_continued(core, path, hash, name)
    }

    /// Searches for a name in the leaves that continue a run of equal hashes.
    fn find_continued(
        &self,
        core: &disk::Inode,
        mut path: Path,
        hash: NameHash,
        name: &Wanted<'_>,
    ) -> Result<Option<Entry>> {
        let mut walk = Walk::default();
        while self.bound(&path)? == Some(hash.major | 1) {
            self.advance(core, &mut path)?;
            let buf = self.leaf_of(core, &path)?;
            walk.visit(self, buf.block())?;
            if let Some(entry) = self.find_in(buf, name)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// [`Dir::find_indexed`], also for names that lie elsewhere.
    pub(super) fn find_anywhere(
        &self,
        core: &disk::Inode,
        name: &Wanted<'_>,
    ) -> Result<Option<Entry>> {
        match self.find_indexed(core, name)? {
            None => self.find_misplaced(core, name),
            found => Ok(found),
        }
    }

    /// Finds a name that lies where its hash does not lead to, in a case-insensitive directory ([`OrderlyDirs`]).
    ///
    /// [`OrderlyDirs`]: steadfs_vfs::OrderlyDirs
    pub(super) fn find_misplaced(
        &self,
        core: &disk::Inode,
        name: &Wanted<'_>,
    ) -> Result<Option<Entry>> {
        let needs_hash = self.encoding.is_none_or(|encoding| encoding.hash_only);
        if needs_hash || self.fs.orderly_dirs.contains(self.ino.into()) {
            return Ok(None);
        }
        let mut orderly = true;
        let mut walk = Walk::default();
        for n in 1..self.block_count(core) {
            let buf = self.block(core, n)?;
            walk.visit(self, buf.block())?;
            if is_index_block(&self.layout, &buf.data()) {
                continue;
            }
            let buf = self.leaf(core, n)?;
            orderly = orderly && self.is_orderly(core, &buf)?;
            if let Some(entry) = self.find_in(buf, name)? {
                return Ok(Some(entry));
            }
        }
        if orderly {
            self.fs.orderly_dirs.insert(self.ino.into());
        }
        Ok(None)
    }

    /// Whether the index leads to each name of a leaf. Names in ASCII were folded alike at all times.
    fn is_orderly(&self, core: &disk::Inode, leaf: &MetaBuf) -> Result<bool> {
        let block = leaf.data();
        for entry in dir_entry::entries(&self.layout, &block) {
            let entry = entry.map_err(self.bad(leaf.block()))?;
            if entry.ino.is_some()
                && !entry.name.is_ascii()
                && self.find_indexed(core, &self.wanted(entry.name))?.is_none()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn search_indexed(&self, core: &disk::Inode, name: &Wanted<'_>) -> Result<Search> {
        let (buf, info) = self.root(core)?;
        let hash = self.hash_wanted(info.hash, name)?;
        let path = self.descend_from(core, buf, info, hash.major)?;
        let search = self.search_in(self.leaf_of(core, &path)?, name)?;
        if matches!(search, Search::Found) {
            return Ok(search);
        }
        if self.find_continued(core, path, hash, name)?.is_some()
            || self.find_misplaced(core, name)?.is_some()
        {
            return Ok(Search::Found);
        }
        Ok(search)
    }

    /// The inodes that `.` and `..` name.
    pub(super) fn indexed_dots(&self, core: &disk::Inode) -> Result<(Ino, Ino)> {
        let (buf, _) = self.root(core)?;
        htree::root_dots(&self.layout, &buf.data()).map_err(self.bad(buf.block()))
    }

    pub(super) fn set_indexed_parent(
        &self,
        handle: &mut Handle<'_>,
        root: &Arc<MetaBuf>,
        parent: Ino,
    ) -> Result<()> {
        self.edit(handle, root, 0, |node| node.set_parent(parent))
    }

    /// Changes a verified node and seals it.
    fn edit(
        &self,
        handle: &mut Handle<'_>,
        buf: &Arc<MetaBuf>,
        depth: usize,
        change: impl FnOnce(&mut DxNodeMut<'_>),
    ) -> Result<()> {
        let mut guard = handle.write(buf)?;
        let block: &mut [u8] = &mut guard;
        let node = if depth == 0 {
            DxNodeMut::edit_root(&self.layout, block)
        } else {
            DxNodeMut::edit_node(&self.layout, block)
        };
        let mut node = node.map_err(self.bad(buf.block()))?;
        change(&mut node);
        node.seal(self.seed);
        Ok(())
    }

    /// Turns a directory of one block into an indexed one: its names move to a new leaf, and the first
    /// block becomes the root.
    pub(super) fn make_index(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
    ) -> Result<()> {
        let root = self.leaf(core, 0)?;
        let old = root.data();
        let bad = self.bad(root.block());
        let dots = htree::root_dots(&self.layout, &old);
        let entries: Result<Vec<_>, _> = dir_entry::entries(&self.layout, &old).collect();
        let (dots, entries) = dots.and_then(|dots| Ok((dots, entries?))).map_err(bad)?;
        let info = RootInfo {
            hash: self.new_hash_kind(),
            indirect_levels: 0,
        };
        // The first two are the dots.
        let names = entries[2..].iter().filter(|entry| entry.ino.is_some());
        self.check_fits(names.clone())?;
        let (at, leaf) = self.fs.append_dir_block(handle, inode, core)?;
        self.pack(handle, &leaf, &old, names)?;
        let mut guard = handle.write(&root)?;
        let first = u32::try_from(at.0).expect("the second block of a directory");
        DxNodeMut::init_root(&self.layout, &mut guard, dots, info, first).seal(self.seed);
        root.set_verified(verified::DIR_ROOT);
        core.flags = core.flags.union(InodeFlags::INDEX);
        Ok(())
    }

    /// Fails if entries do not fit a block: one of them had too little room for its hash.
    fn check_fits<'e>(&self, entries: impl Iterator<Item = &'e RawEntry<'e>>) -> Result<()> {
        let sizes = entries.map(|entry| self.layout.entry_size(entry.name.len()));
        match sizes.sum::<usize>() <= self.layout.entries_end() {
            true => Ok(()),
            false => Err(self.corrupt("the entries of a block need more than a block")),
        }
    }

    /// Fails if a hash is not one that the index leads to the path's leaf for. Hashes behind names are what an image says.
    fn check_hashes(&self, path: &Path, mut hashes: impl Iterator<Item = u32>) -> Result<()> {
        if !self.layout.has_hashes {
            return Ok(());
        }
        let mut low = 0;
        for (depth, step) in path.steps.iter().enumerate() {
            if step.at > 0 {
                low = self.view(&step.buf.data(), depth)?.entry(step.at).hash & !1;
            }
        }
        let high = self.bound(path)?.unwrap_or(u32::MAX);
        let odd = |hash: u32| hash & 1 != 0 || hash < low || hash >= high;
        match hashes.any(odd) {
            false => Ok(()),
            true => Err(self.corrupt("a name is not where the index says")),
        }
    }

    /// Fills a leaf with entries of the block `from`.
    fn pack<'e>(
        &self,
        handle: &mut Handle<'_>,
        buf: &Arc<MetaBuf>,
        from: &[u8],
        entries: impl Iterator<Item = &'e RawEntry<'e>>,
    ) -> Result<()> {
        self.rewrite(handle, buf, |block| {
            let mut packer = Packer::new(&self.layout, block);
            for entry in entries {
                let ino = entry.ino.expect("free space is not packed");
                let hash = self.layout.has_hashes.then(|| entry.stored_hash(from));
                let fits = packer.push(ino, entry.file_type, entry.name, hash);
                assert!(fits, "entries of one block fit a block");
            }
            packer.finish();
        })
    }

    pub(super) fn grow_index(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        name: &Wanted<'_>,
    ) -> Result<()> {
        let (buf, info) = self.root(core)?;
        let hash = self.hash_wanted(info.hash, name)?;
        let path = self.descend_from(core, buf, info, hash.major)?;
        let mut roomy = None;
        for (depth, step) in path.steps.iter().enumerate().rev() {
            if !self.view(&step.buf.data(), depth)?.is_full() {
                roomy = Some(depth);
                break;
            }
        }
        match roomy {
            Some(depth) if depth + 1 == path.steps.len() => {
                self.split_leaf(handle, inode, core, &path)
            }
            Some(depth) => self.split_node(handle, inode, core, &path, depth),
            // e2fsck does not know the nodes that Linux makes where names have hashes, nor Linux those that e2fsck makes.
            None if self.layout.has_hashes => Err(self.index_full()),
            None if info.indirect_levels < htree::max_levels(self.fs.geo()) => {
                self.add_level(handle, inode, core, &path)
            }
            None => Err(self.index_full()),
        }
    }

    /// ENOSPC although the volume has space: the log and `.steadfs/errors` name the cause.
    fn index_full(&self) -> FsError {
        let what = format!(
            "directory {}: its index has no room for more names; use several directories{}",
            self.ino,
            match self.fs.geo().has_incompat(Incompat::LARGE_DIR) {
                _ if self.layout.has_hashes =>
                    " (of encrypted, case-insensitive names it has one level here, as Linux and e2fsck disagree on larger \
                     ones)",
                true => "",
                false =>
                    ", or enable a third level: tune2fs -O large_dir, when the volume is unmounted",
            }
        );
        self.fs.errors.record_full_directory(&what);
        FsError::NoRoom("more names in the directory's index")
    }

    /// Moves the upper half of a leaf's hashes to a new leaf.
    fn split_leaf(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        path: &Path,
    ) -> Result<()> {
        let leaf = self.leaf_of(core, path)?;
        let data = leaf.data();
        let mut names: Vec<(u32, RawEntry<'_>)> = Vec::with_capacity(self.layout.block_size / 32);
        for entry in dir_entry::entries(&self.layout, &data) {
            let entry = entry.map_err(self.bad(leaf.block()))?;
            if entry.ino.is_some() {
                names.push((self.hash_entry(path.info.hash, &data, &entry)?.major, entry));
            }
        }
        names.sort_by_key(|&(hash, _)| hash);
        let split = split_point(&names, &self.layout)
            .ok_or_else(|| self.corrupt("a full leaf has fewer than two names"))?;
        self.check_hashes(path, names.iter().map(|&(hash, _)| hash))?;
        for half in [&names[split..], &names[..split]] {
            self.check_fits(half.iter().map(|(_, entry)| entry))?;
        }
        let (at, new) = self.fs.append_dir_block(handle, inode, core)?;
        for (leaf, names) in [(&new, &names[split..]), (&leaf, &names[..split])] {
            let entries = names.iter().map(|(_, entry)| entry);
            self.pack(handle, leaf, &data, entries)?;
        }
        let lowest = names[split].0;
        let continued = u32::from(names[split - 1].0 == lowest);
        let child = DxEntry {
            hash: lowest | continued,
            block: self.child_number(at.0)?,
        };
        let depth = path.steps.len() - 1;
        let step = &path.steps[depth];
        self.edit(handle, &step.buf, depth, |node| {
            node.insert(step.at + 1, child)
        })
    }

    /// Moves the upper half of the children of the node below `depth` to a new node.
    fn split_node(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        path: &Path,
        depth: usize,
    ) -> Result<()> {
        let full = &path.steps[depth + 1];
        let data = full.buf.data();
        let node = self.view(&data, depth + 1)?;
        let (half, len) = (node.len() / 2, node.len());
        if half == 0 {
            return Err(self.corrupt("a full node has one child"));
        }
        let (at, new) = self.fs.append_dir_block(handle, inode, core)?;
        let child = DxEntry {
            hash: node.entry(half).hash,
            block: self.child_number(at.0)?,
        };
        self.init_node(handle, &new, &node, half..len)?;
        self.edit(handle, &full.buf, depth + 1, |node| node.truncate(half))?;
        let step = &path.steps[depth];
        self.edit(handle, &step.buf, depth, |node| {
            node.insert(step.at + 1, child)
        })
    }

    /// Moves all children of the root to a new node.
    fn add_level(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        path: &Path,
    ) -> Result<()> {
        let root = &path.steps[0].buf;
        let data = root.data();
        let node = self.view(&data, 0)?;
        let (at, new) = self.fs.append_dir_block(handle, inode, core)?;
        let child = self.child_number(at.0)?;
        self.init_node(handle, &new, &node, 0..node.len())?;
        self.edit(handle, root, 0, |node| {
            node.truncate(1);
            node.set_block(0, child);
            node.set_levels(path.info.indirect_levels + 1);
        })
    }

    fn init_node(
        &self,
        handle: &mut Handle<'_>,
        buf: &Arc<MetaBuf>,
        from: &DxNode<'_>,
        range: std::ops::Range<u16>,
    ) -> Result<()> {
        let mut guard = handle.write(buf)?;
        let first = from.entry(range.start).block;
        let mut node = DxNodeMut::init_node(&self.layout, &mut guard, first);
        node.copy_from(from, range);
        node.seal(self.seed);
        buf.set_verified(verified::DIR_NODE);
        Ok(())
    }

    /// A directory block's number as the index stores it, in 28 bits.
    fn child_number(&self, n: u64) -> Result<u32> {
        u32::try_from(n)
            .ok()
            .filter(|&n| n <= htree::MAX_BLOCK)
            .ok_or_else(|| self.index_full())
    }
}

/// Where to cut sorted names so that neither half fills more than about half a block; by count where
/// all of them fit half a block.
fn split_point(names: &[(u32, RawEntry<'_>)], layout: &DirLayout) -> Option<usize> {
    if names.len() < 2 {
        return None;
    }
    let mut moved = 0;
    for (i, (_, entry)) in names.iter().enumerate().skip(1).rev() {
        let size = layout.entry_size(entry.name.len());
        // An entry belongs to the half that has its larger part.
        if moved + size / 2 > layout.block_size / 2 {
            return Some((i + 1).min(names.len() - 1));
        }
        moved += size;
    }
    Some(names.len() / 2)
}
