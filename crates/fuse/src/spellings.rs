//! Names of case-insensitive and encrypted directories in the kernel's cache.
//!
//! **Problem.** The kernel's FUSE client compares names by their bytes. What it knows of one spelling stays in its cache
//! when a call by another spelling makes, moves or removes the name. Names of an encrypted directory become others when
//! its key is added or removed.
//!
//! **Rule.** It looks up each name of such a directory again whenever it needs it. That a name is missing is not kept in
//! any directory of a volume with the feature: an empty directory can become case-insensitive, and then a file may have
//! that name in another spelling. A volume without the feature pays nothing.

use steadfs_vfs::{Attr, InodeFlags};

use crate::call::Call;
use crate::reply::OPEN_OUT;
use crate::wire;

/// How names of a directory are compared.
#[derive(Clone, Copy)]
pub(crate) enum Spellings {
    /// By their bytes, now and later.
    One,
    /// By their bytes, unless an empty directory is made case-insensitive.
    OneYet,
    /// Without case, or as the keys say that are there.
    Many,
}

impl Call<'_> {
    /// How the names of the directory of this call are compared.
    pub(crate) fn spellings(&self) -> Spellings {
        let fs = &self.volume.fs;
        if !fs.folds_names() && !fs.has_encryption() {
            return Spellings::One;
        }
        let many = |flags: InodeFlags| {
            flags.contains(InodeFlags::CASEFOLD) || flags.contains(InodeFlags::ENCRYPTED)
        };
        match fs.getattr(&self.cx, self.ino) {
            Ok(dir) if many(dir.flags) => Spellings::Many,
            Ok(_) if fs.folds_names() => Spellings::OneYet,
            Ok(_) => Spellings::One,
            // A name that is looked up too often does no harm.
            Err(_) => Spellings::Many,
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

    /// The reply to OPENDIR: whether the kernel may cache the listing, as it does where OPENDIR is not supported.
    pub(crate) fn open_dir(&self) -> wire::OpenOut {
        let open_flags = match self.spellings() {
            Spellings::Many => 0,
            Spellings::One | Spellings::OneYet => wire::FOPEN_KEEP_CACHE | wire::FOPEN_CACHE_DIR,
        };
        wire::OpenOut {
            open_flags,
            ..OPEN_OUT
        }
    }

    /// The reply that the directory has no such entry.
    pub(crate) fn no_entry(&self) -> wire::EntryOut {
        let translate = &self.volume.translate;
        match self.spellings() {
            Spellings::OneYet | Spellings::Many => translate.unkept().no_entry(),
            Spellings::One => translate.no_entry(),
        }
    }
}
