//! Hot and cold files by name: the superblock's lists of file name extensions.

use std::borrow::Cow;

use crate::data::placement::has_extension;
use crate::disk::Superblock;
use crate::disk::inode::Advise;

/// The superblock's lists of file name extensions.
pub(crate) struct Extensions {
    /// Extensions of files with cold data.
    cold: Vec<Vec<u8>>,
    /// Extensions of files with hot data.
    hot: Vec<Vec<u8>>,
}

impl Extensions {
    pub(crate) fn of(superblock: &Superblock) -> Self {
        let (cold, hot) = superblock.extensions();
        let own = |list: Vec<Cow<'_, str>>| {
            let bytes = list.into_iter().map(|ext| ext.into_owned().into_bytes());
            bytes.collect()
        };
        Self {
            cold: own(cold),
            hot: own(hot),
        }
    }

    /// Whether a name ends with a dot and an extension of hot data, in upper or lower case.
    pub(super) fn ends_hot(&self, name: &[u8]) -> bool {
        self.hot.iter().any(|ext| ends_with(name, ext))
    }

    /// The hint for a file name.
    pub(super) fn advise(&self, name: &[u8]) -> Advise {
        let has_dot = name.iter().skip(1).any(|byte| *byte == b'.');
        let may_match = |ext: &[u8]| has_dot || ext == b"*";
        let has = |list: &[Vec<u8>]| {
            let mut list = list.iter().filter(|ext| may_match(ext));
            list.any(|ext| has_extension(name, ext))
        };
        if has(&self.cold) {
            Advise::COLD
        } else if has(&self.hot) {
            Advise::HOT
        } else {
            Advise::default()
        }
    }
}

/// Whether a name ends with a dot, which is not its first byte, and this extension, in upper or lower case; `*` stands
/// for all names.
pub(super) fn ends_with(name: &[u8], extension: &[u8]) -> bool {
    if extension == b"*" {
        return true;
    }
    let Some(dot) = name.len().checked_sub(extension.len() + 1) else {
        return false;
    };
    dot > 0 && name[dot] == b'.' && name[dot + 1..].eq_ignore_ascii_case(extension)
}
