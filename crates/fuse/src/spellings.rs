//! Names of case-insensitive directories in the kernel's cache.
//!
//! **Problem.** The kernel's FUSE client compares names by their bytes. What it knows of one spelling stays in its cache
//! when a call by another spelling makes, moves or removes the name.
//!
//! **Rule.** It looks up each name of such a directory again whenever it needs it. That a name is missing is not kept in
//! any directory of a volume with the feature: an empty directory can become case-insensitive, and then a file may have
//! that name in another spelling. A volume without the feature pays nothing.

use steadfs_vfs::{Attr, InodeFlags};

use crate::call::Call;
use crate::wire;

/// How names of a directory are compared.
#[derive(Clone, Copy)]
pub(crate) enum Spellings {
    /// By their bytes, now and later.
    One,
    /// By their bytes, unless an empty directory is made case-insensitive.
    OneYet,
    /// Without case.
    Many,
}

impl Call<'_> {
    /// How the names of the directory of this call are compared.
    pub(crate) fn spellings(&self) -> Spellings {
        if !self.volume.fs.folds_names() {
            return Spellings::One;
        }
        match self.volume.fs.getattr(&self.cx, self.ino) {
            Ok(dir) if !dir.flags.contains(InodeFlags::CASEFOLD) => Spellings::OneYet,
            // A name that is looked up too often does no harm.
            Ok(_) | Err(_) => Spellings::Many,
        }
    }

    /// The reply with an entry of a directory.
    pub(crate) fn entry(&self, attr: &Attr, spellings: Spellings) -> wire::EntryOut {
        let translate = &self.volume.translate;
        match spellings {
            Spellings::Many => translate.unkept().entry(attr),
            Spellings::One | Spellings::OneYet => translate.entry(attr),
        }
    }

    /// The reply that the directory has no such entry.
    pub(crate) fn no_entry(&self) -> wire::EntryOut {
        let translate = &self.volume.translate;
        match self.volume.fs.folds_names() {
            true => translate.unkept().no_entry(),
            false => translate.no_entry(),
        }
    }
}
