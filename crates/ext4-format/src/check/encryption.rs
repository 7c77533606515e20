//! Encrypted inodes: each has a context, and the entries of an encrypted directory have the directory's policy.
//! Contents and plain names would need the key and are not checked.

use std::hash::Hasher;

use steadfs_base::{DevBlock, FixedHasher};
use steadfs_format_base::check::Name;
use steadfs_vfs::{FileKind, InodeFlags};

use super::tables::InodeState;
use super::{Checker, Issue};
use crate::disk::features::Incompat;
use crate::disk::xattr::{BlockAttrs, INDEX_ENCRYPTION, InodeAttrs, Value};
use crate::disk::{Ino, Inode};

/// Bytes of the nonce that ends a context; what is before it is the policy.
const NONCE: usize = 16;
/// Bytes of a context of version 1, and of version 2.
const CONTEXTS: [(u8, usize); 2] = [(1, 28), (2, 40)];
/// Name of the context in its name space.
const CONTEXT: &[u8] = b"c";
/// Bytes of the shortest encrypted name: one cipher block.
const SHORTEST_NAME: usize = 16;

impl Checker<'_> {
    /// Checks the context of an inode with the encryption flag.
    pub(super) fn check_context(&mut self, ino: Ino, inode: &Inode) {
        // On a volume without encryption the flag itself is wrong.
        if !inode.has(InodeFlags::ENCRYPTED) || !self.geo.has_incompat(Incompat::ENCRYPT) {
            return;
        }
        let state = self.inodes.get_mut(&self.geo, ino);
        state.set(InodeState::ENCRYPTED);
        let why = match self.context(inode) {
            Some(context) => match policy(&context) {
                Some(policy) => {
                    self.policies.insert(ino.0, policy);
                    return;
                }
                None => "its encryption context is none",
            },
            None => "it is encrypted and has no encryption context",
        };
        self.issue(Issue::Encryption { ino, why });
    }

    /// The encryption context, in the inode or in its attribute block.
    fn context(&mut self, inode: &Inode) -> Option<Vec<u8>> {
        let here = |value: Value<'_>| match value {
            Value::Here(bytes) => Some(bytes.to_vec()),
            Value::Inode { .. } => None,
        };
        let attrs = InodeAttrs::parse(&inode.xattr_area).ok();
        let found = attrs.and_then(|attrs| here(attrs.get(INDEX_ENCRYPTION, CONTEXT)?.value));
        if found.is_some() {
            return found;
        }
        let block: DevBlock = inode.file_acl.filter(|at| self.geo.is_data_range(*at, 1))?;
        let mut buf = std::mem::take(&mut self.levels[0]);
        let found = self.read_block(block, &mut buf).then(|| {
            let attrs = BlockAttrs::parse(&self.geo, block, &buf).ok()?;
            let mut all = attrs.iter();
            let context = all.find(|a| a.index == INDEX_ENCRYPTION && a.name == CONTEXT)?;
            here(context.value)
        });
        self.levels[0] = buf;
        found.flatten()
    }

    /// An entry of an encrypted directory.
    pub(super) fn check_encrypted_entry(&mut self, i: usize, name: &[u8], target: Ino) {
        let dir = self.dirs[i].ino;
        let state = self.inodes.get(&self.geo, target);
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Symlink];
        let must_be = kinds.iter().any(|kind| kind.entry_type() == state.kind);
        let policies = [dir, target].map(|ino| self.policies.get(&ino.0));
        let why = if name.len() < SHORTEST_NAME {
            "is shorter than an encrypted name"
        } else if must_be && !state.has(InodeState::ENCRYPTED) {
            "names an inode that is not encrypted"
        } else if must_be && matches!(policies, [Some(own), Some(other)] if own != other) {
            "names an inode that is encrypted by another policy"
        } else {
            return;
        };
        self.issue(Issue::EncryptedName {
            dir,
            name: Name::of(name),
            why,
        });
    }
}

/// Hash of the policy in a context; `None` if the context is invalid.
fn policy(context: &[u8]) -> Option<u64> {
    let is_one = |&(version, len): &(u8, usize)| context[0] == version && context.len() == len;
    if context.is_empty() || !CONTEXTS.iter().any(is_one) {
        return None;
    }
    let mut hasher = FixedHasher::default();
    hasher.write(&context[..context.len() - NONCE]);
    Some(hasher.finish())
}
