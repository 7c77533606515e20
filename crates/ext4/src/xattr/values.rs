//! Values of attributes in inodes of their own (`ea_inode`), shared by all entries with an equal value, and counted.
//!
//! **Rule.** An attribute inode never changes but in its number of references. The number changes in the handle that
//! changes the entry. Without references it has no link, and is an orphan from the same handle on; it is freed when the
//! call holds no lock, or by the next mount. An attribute block counts as one owner, however many inodes share it.
//!
//! Its content is metadata: it is written to the log, as in Linux.
//!
//! **Sharing.** The volume has no index of values. A table in memory has the hashes of values that were read or written
//! since the mount; an equal value is found there, and its content is compared.
//!
//! **Locks.** The fields of an attribute inode are locked while those of its owner are; of two attribute inodes never
//! both.

use std::sync::Arc;

use steadfs_base::limits::XATTR_SIZE_MAX;
use steadfs_base::{Corruption, FileBlock, IoTag, Timestamp};
use steadfs_rt::random_u64;
use steadfs_vfs::{FileKind, FsError, InodeFlags, Result};

use crate::clusters::HoleRequest;
use crate::credits;
use crate::disk::features::Incompat;
use crate::disk::inode::EA_INODE;
use crate::disk::xattr::{
    Attr, AttrList, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, OwnedAttr, OwnedValue, Value,
};
use crate::disk::{self, Ino, ea_inode};
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::orphan;
use crate::pins::Pins;
use crate::txn::Handle;

/// The inode whose attributes refer to a value.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    ino: Ino,
    generation: u32,
}

impl Owner {
    pub(super) fn of(ino: Ino, core: &disk::Inode) -> Self {
        Self {
            ino,
            generation: core.generation,
        }
    }
}

/// An attribute inode that an entry refers to.
pub(super) struct Reference {
    pub(super) inode: Arc<Inode>,
    /// It is in Lustre's form: it has no count, and its owner does not count its blocks.
    lustre: bool,
}

fn bad(ino: Ino, what: &str) -> FsError {
    let what = format!("as an attribute's value: {what}");
    Corruption::new(what).in_inode(ino).into()
}

impl Ext4 {
    /// Whether values can be in inodes.
    pub(super) fn has_value_inodes(&self) -> bool {
        self.geo().has_incompat(Incompat::EA_INODE)
    }

    /// Whether an inode is the value of an attribute, which has no name and is not accessible by number.
    pub(crate) fn is_value(&self, inode: &Inode) -> bool {
        self.has_value_inodes() && inode.is_value()
    }

    /// Fails unless `owner` can refer to inode `ino`.
    fn check_value_number(&self, owner: Owner, ino: Ino) -> Result<()> {
        if !self.has_value_inodes() {
            return Err(bad(ino, "the volume has no attribute inodes"));
        }
        if !self.is_nameable(ino) || ino == Ino::ROOT {
            return Err(bad(ino, "no such inode"));
        }
        if ino == owner.ino {
            return Err(bad(ino, "is the inode that has the attribute"));
        }
        Ok(())
    }

    /// Reads the value that an entry refers to.
    pub(super) fn read_value(
        &self,
        owner: Owner,
        attr: &Attr<'_>,
        (ino, size): (Ino, u32),
        tag: IoTag,
    ) -> Result<Vec<u8>> {
        self.check_value_number(owner, ino)?;
        // Read from the table directly, without an inode in memory: changes are stored there in their handle.
        let core = {
            let (slots, at) = self.inode_slot(ino, tag)?;
            let slot = &slots.data()[at..at + usize::from(self.geo().inode_size)];
            disk::Inode::parse(self.geo(), ino, slot)?
        };
        if let Some(why) = ea_inode::why_no_value(&core, size) {
            return Err(bad(ino, why));
        }
        let value = self.value_content(ino, &core, tag)?;
        let hash = ea_inode::stored_hash(&core);
        if !attr.fits_value_hash(hash) && ea_inode::is_lustre(&core, owner.ino, owner.generation) {
            return Ok(value);
        }
        if !attr.fits_value_hash(hash) || ea_inode::hash(self.geo(), &value) != hash {
            return Err(bad(ino, "does not fit its hash"));
        }
        self.values.learn(hash, ino);
        Ok(value)
    }

    /// The content of an attribute inode whose size was checked.
    fn value_content(&self, ino: Ino, core: &disk::Inode, tag: IoTag) -> Result<Vec<u8>> {
        let size = usize::try_from(core.size)
            .unwrap_or(usize::MAX)
            .min(XATTR_SIZE_MAX);
        let mut value = Vec::with_capacity(size);
        for n in 0..self.geo().block_size.blocks_for(core.size) {
            let at = self.map_block(core, ino, FileBlock(n), tag)?;
            let at = at.ok_or_else(|| bad(ino, "has a hole"))?;
            let left = size - value.len();
            let data = self.block(at, tag)?.data();
            value.extend_from_slice(&data[..left.min(data.len())]);
        }
        Ok(value)
    }

    /// Pins what dropping and adding references to the values of an inode changes.
    pub(super) fn pin_values(&self, inode: &Inode, tag: IoTag, pins: &mut Pins) -> Result<()> {
        if !self.has_value_inodes() {
            return Ok(());
        }
        let (inside, outside) = self.attr_lists(inode.ino(), &inode.core.read())?;
        for ino in inside.value_inodes().chain(outside.value_inodes()) {
            if self.is_nameable(ino) {
                pins.keep(self.inode_slot(ino, tag)?.0);
            }
        }
        self.orphans.pin_to_add(self, pins)
    }

    /// Credits for changes of an inode's fields and attributes, one of which may get a value of `value` bytes.
    ///
    /// # Errors
    /// `NoSpace`: no transaction is large enough.
    pub(crate) fn attr_credits(&self, inode: &Inode, value: usize, tag: IoTag) -> Result<u32> {
        if !self.has_value_inodes() {
            return Ok(credits::ATTRIBUTES);
        }
        let core = inode.core.read();
        // A change of the mode rewrites the access list.
        let list = self.attr_size(&core, INDEX_ACL_ACCESS, tag)?;
        let (inside, outside) = self.attr_lists(inode.ino(), &core)?;
        let values = inside.value_inodes().count() + outside.value_inodes().count();
        let credits = credits::ATTRIBUTES
            + values as u32
            + 2 * orphan::CREDITS
            + self.value_credits(value.max(list));
        let journal = self.txns().journal();
        match journal.is_some_and(|journal| journal.max_credits() < credits) {
            true => Err(FsError::NoRoom("the extended attribute in a transaction")),
            false => Ok(credits),
        }
    }

    /// Bytes of a list that an inode has; 0 without one.
    fn attr_size(&self, core: &disk::Inode, index: u8, tag: IoTag) -> Result<usize> {
        let size = self.find_attr(core, index, b"", tag, |attr| {
            Ok(match attr.value {
                Value::Here(value) => value.len(),
                Value::Inode { size, .. } => size as usize,
            })
        })?;
        Ok(size.unwrap_or(0))
    }

    /// Credits for a new attribute inode of `len` bytes: the inode, its blocks with bitmaps and descriptors, one block of
    /// its map, and the orphan entry if it cannot be finished.
    fn value_credits(&self, len: usize) -> u32 {
        let len = len.min(XATTR_SIZE_MAX) as u64;
        let blocks = self.geo().block_size.blocks_for(len) as u32;
        let groups = (blocks + 1).min(self.geo().group_count);
        credits::INODE + blocks + 1 + 2 * groups + orphan::CREDITS
    }

    /// Further credits for a new inode in `dir` that may inherit lists in inodes.
    pub(crate) fn inherit_credits(&self, dir: &Inode, tag: IoTag) -> Result<u32> {
        let context = match dir.has(InodeFlags::ENCRYPTED) {
            true => credits::XATTR_BLOCKS,
            false => 0,
        };
        if !self.has_value_inodes() {
            return Ok(context);
        }
        let len = self.attr_size(&dir.core.read(), INDEX_ACL_DEFAULT, tag)?;
        // Two lists that fill less than half of a block are stored there.
        match len < self.geo().block_size.bytes() / 8 {
            true => Ok(context),
            false => Ok(context + 2 * self.value_credits(len)),
        }
    }

    /// The attribute inode that an entry of `owner` refers to, for a change of its references; it is not changed yet.
    pub(super) fn reference(&self, owner: Owner, value: &OwnedAttrValue<'_>) -> Result<Reference> {
        let &OwnedAttrValue {
            name,
            ino,
            size,
            hash,
        } = value;
        self.check_value_number(owner, ino)?;
        let inode = match self.inode(ino, IoTag::default()) {
            Err(FsError::Stale) => return Err(bad(ino, "is not in use")),
            found => found?,
        };
        // Asked first: the fields of any other inode are not locked while its owner's are.
        if !inode.is_value() {
            return Err(bad(ino, "is not an attribute inode"));
        }
        let core = inode.core.read();
        if let Some(why) = ea_inode::why_no_value(&core, size) {
            return Err(bad(ino, why));
        }
        let attr = Attr {
            index: 0,
            name,
            value: Value::Inode { ino, size },
            hash,
        };
        let lustre = !attr.fits_value_hash(ea_inode::stored_hash(&core))
            && ea_inode::is_lustre(&core, owner.ino, owner.generation);
        if !lustre && ea_inode::references(&core) == 0 {
            return Err(bad(ino, "has no references"));
        }
        drop(core);
        Ok(Reference { inode, lustre })
    }

    /// The references to values that entries of a list are, for a change of all of them.
    pub(super) fn references(&self, owner: Owner, list: &AttrList) -> Result<Vec<Reference>> {
        let values = list.iter().filter_map(OwnedAttrValue::of);
        values.map(|value| self.reference(owner, &value)).collect()
    }

    /// [`Ext4::references`] to be dropped: those that are corrupt are reported, and left out.
    pub(super) fn droppable(&self, owner: Owner, list: &AttrList) -> Result<Vec<Reference>> {
        let mut found = Vec::new();
        for value in list.iter().filter_map(OwnedAttrValue::of) {
            match self.reference(owner, &value) {
                Ok(reference) => found.push(reference),
                Err(FsError::Corrupt(what)) => self.alloc.record_corruption((*what).clone()),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Drops all references of a list.
    pub(super) fn drop_references(
        &self,
        handle: &mut Handle<'_>,
        owner: Owner,
        list: &AttrList,
    ) -> Result<()> {
        for reference in self.droppable(owner, list)? {
            self.drop_reference(handle, reference)?;
        }
        Ok(())
    }

    /// Counts one more entry that refers to a value.
    pub(super) fn add_reference(
        &self,
        handle: &mut Handle<'_>,
        reference: &Reference,
    ) -> Result<()> {
        let mut core = reference.inode.core.write();
        if core.links == 0 {
            return self.too_few_references(&reference.inode);
        }
        let count = match reference.lustre {
            true => 1,
            false => ea_inode::references(&core),
        };
        ea_inode::set_references(&mut core, count.saturating_add(1));
        self.store_inode(handle, &reference.inode, &core)
    }

    /// Counts one entry less that refers to a value. After the last one it has no link, and the handle leaves it as an
    /// orphan.
    pub(super) fn drop_reference(
        &self,
        handle: &mut Handle<'_>,
        reference: Reference,
    ) -> Result<()> {
        let Reference { inode, lustre } = reference;
        handle.refuse_fast_commits(refusal::XATTR);
        let mut core = inode.core.write();
        if core.links == 0 {
            return self.too_few_references(&inode);
        }
        let count = match lustre {
            true => 0,
            false => ea_inode::references(&core).saturating_sub(1),
        };
        ea_inode::set_references(&mut core, count);
        if count == 0 {
            core.links = 0;
            self.values
                .forget(ea_inode::stored_hash(&core), inode.ino());
        }
        self.store_inode(handle, &inode, &core)?;
        drop(core);
        if count == 0 {
            handle.leave_unreferenced(inode);
        }
        Ok(())
    }

    /// More entries refer to an attribute inode than it counted; it has lost its last reference.
    fn too_few_references(&self, value: &Inode) -> Result<()> {
        let what = Corruption::new("more attributes refer to it than it counts");
        self.alloc.record_corruption(what.in_inode(value.ino()));
        Ok(())
    }

    /// Units of 512 bytes that the owner of an attribute counts for what its entry refers to.
    pub(super) fn units_of(&self, reference: &Reference) -> u64 {
        match reference.lustre {
            true => 0,
            false => self.value_units(reference.inode.core.read().size),
        }
    }

    /// Units of 512 bytes that the owner of an attribute counts for its value in an inode.
    pub(super) fn value_units(&self, size: u64) -> u64 {
        let blocks = self.geo().block_size.blocks_for(size);
        let blocks = blocks.next_multiple_of(self.geo().blocks_per_cluster().into());
        blocks * (self.geo().block_size.bytes_u64() / 512)
    }

    /// An inode with this value, to which one more entry will refer: one that exists, or a new one; and the hash of the
    /// value. On error nothing has changed, or what was made is left as an orphan.
    pub(super) fn value_for(
        &self,
        handle: &mut Handle<'_>,
        owner: &Inode,
        core: &disk::Inode,
        value: &[u8],
    ) -> Result<(Ino, u32)> {
        handle.refuse_fast_commits(refusal::XATTR);
        let hash = ea_inode::hash(self.geo(), value);
        for ino in self.values.with_hash(hash) {
            if ino != owner.ino() && self.share_value(handle, ino, value, hash)? {
                return Ok((ino, hash));
            }
        }
        if !handle.extend(self.value_credits(value.len())) {
            return Err(FsError::NoSpace);
        }
        let ino = self.make_value(handle, owner, core, value, hash)?;
        self.values.learn(hash, ino);
        Ok((ino, hash))
    }

    /// Counts one more reference to an inode if it has this value. What cannot be read is not shared.
    fn share_value(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        value: &[u8],
        hash: u32,
    ) -> Result<bool> {
        let tag = IoTag::default();
        let Ok(pins) = self.pin_inodes(&[ino], tag) else {
            return Ok(false);
        };
        let Ok(inode) = self.inode(ino, tag) else {
            return Ok(false);
        };
        if !self.is_value(&inode) {
            return Ok(false);
        }
        let mut core = inode.core.write();
        let count = ea_inode::references(&core);
        let same = ea_inode::why_no_value(&core, value.len() as u32).is_none()
            && ea_inode::stored_hash(&core) == hash
            && (1..u64::MAX).contains(&count)
            && self
                .value_content(ino, &core, tag)
                .is_ok_and(|content| content == value);
        if !same {
            return Ok(false);
        }
        ea_inode::set_references(&mut core, count + 1);
        self.store_inode(handle, &inode, &core)?;
        drop(pins);
        Ok(true)
    }

    /// Makes an inode with this value and one reference.
    fn make_value(
        &self,
        handle: &mut Handle<'_>,
        owner: &Inode,
        core: &disk::Inode,
        value: &[u8],
        hash: u32,
    ) -> Result<Ino> {
        let (before, mut pins) = (handle.savepoint(), Pins::default());
        let kind = FileKind::Regular;
        let ino = self.alloc.new_inode(self, handle, owner, kind, &mut pins)?;
        let new = self.value_core(core, hash);
        let inode = self.start_inode(handle, ino, new, before)?;
        let filled = {
            let mut core = inode.core.write();
            let filled = self.fill_value(handle, ino, &mut core, value);
            if filled.is_err() {
                core.links = 0;
                ea_inode::set_references(&mut core, 0);
            }
            self.store_inode(handle, &inode, &core)?;
            filled
        };
        if let Err(error) = filled {
            handle.leave_unreferenced(inode);
            handle.consistent_since(before);
            return Err(error);
        }
        Ok(ino)
    }

    /// The fields of a new attribute inode, whose owner has the fields `owner`.
    fn value_core(&self, owner: &disk::Inode, hash: u32) -> disk::Inode {
        let mut core = disk::Inode {
            // Type and permissions: a regular file that only its owner may read and write.
            mode: (FileKind::Regular.mode_bits() | 0o600) as u16,
            uid: owner.uid,
            gid: owner.gid,
            links: 1,
            // The lower half of a random number.
            generation: random_u64() as u32,
            extra_isize: self.geo().want_extra_isize,
            flags: InodeFlags(EA_INODE.0),
            ..disk::Inode::default()
        };
        let now: Timestamp = self.now(&core);
        core.mtime = now;
        core.btime = core.has_wide_times().then_some(now);
        ea_inode::set_hash(&mut core, hash);
        ea_inode::set_references(&mut core, 1);
        self.init_map(&mut core);
        core
    }

    /// Gives a new attribute inode its blocks. On error it has a part of them.
    fn fill_value(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        value: &[u8],
    ) -> Result<()> {
        let bs = self.geo().block_size;
        let blocks = bs.blocks_for(value.len() as u64) as u32;
        let mut chunks = value.chunks(bs.bytes());
        let mut done = 0;
        while done < blocks {
            let at = FileBlock(done.into());
            let goal = self.goal_after(ino, core, at);
            let hole = HoleRequest {
                ino,
                at,
                len: (blocks - done).into(),
                goal,
            };
            let plan = self.plan_hole(core, hole)?;
            let run = self.fill_hole(plan, |_, goal, want| {
                self.alloc
                    .allocate_spare(self, goal, want, handle.kept_for_root())
            })?;
            let mapped = self.map_allocation(handle, ino, core, at, run, false);
            if let Err(error) = mapped {
                self.release_unmapped(run, &error);
                return Err(error);
            }
            for (n, chunk) in (0..run.len).zip(&mut chunks) {
                let buf = self.meta().get_new(run.start.plus(n.into()));
                handle.write(&buf)?[..chunk.len()].copy_from_slice(chunk);
            }
            done += run.len;
        }
        core.size = value.len() as u64;
        Ok(())
    }
}

/// An attribute's value in an inode, and what its entry has.
pub(super) struct OwnedAttrValue<'a> {
    name: &'a [u8],
    ino: Ino,
    size: u32,
    hash: u32,
}

impl<'a> OwnedAttrValue<'a> {
    pub(super) fn of(attr: &'a OwnedAttr) -> Option<Self> {
        match attr.value {
            OwnedValue::Here(_) => None,
            OwnedValue::Inode { ino, size, hash } => Some(Self {
                name: &attr.name,
                ino,
                size,
                hash,
            }),
        }
    }
}
