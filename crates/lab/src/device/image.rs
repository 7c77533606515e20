//! A device's content without the device.

use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use steadfs_base::FixedHasher;
use steadfs_block::Buf;

use super::content_tree::{CHUNK, ContentTree};

/// A device's content as a value. Clones share unchanged content.
#[derive(Clone)]
pub struct Image {
    pub(super) tree: ContentTree,
}

impl Image {
    /// `size` zero bytes.
    pub fn zeroed(size: u64) -> Self {
        Self {
            tree: ContentTree::zeroed(size),
        }
    }

    /// A copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut image = Self::zeroed(bytes.len() as u64);
        for (offset, part) in (0..).step_by(CHUNK).zip(bytes.chunks(CHUNK)) {
            image.fill(offset, part);
        }
        image
    }

    /// A file's content.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn load(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut image = Self::zeroed(size);
        let mut buf = vec![0; 1 << 20];
        let mut at = 0;
        while at < size {
            let n = buf
                .len()
                .min(usize::try_from(size - at).unwrap_or(usize::MAX));
            file.read_exact_at(&mut buf[..n], at)?;
            for (offset, part) in (at..).step_by(CHUNK).zip(buf[..n].chunks(CHUNK)) {
                image.fill(offset, part);
            }
            at += n as u64;
        }
        Ok(image)
    }

    /// Creates `path` as a sparse file with this content.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.size())?;
        let mut result = Ok(());
        let zeros = ContentTree::zeroed(self.size());
        self.tree.changes(&zeros, &mut |offset, _, bytes| {
            let inside = usize::try_from(self.size() - offset).unwrap_or(usize::MAX);
            let bytes = &bytes[..bytes.len().min(inside)];
            if result.is_ok() {
                result = file.write_all_at(bytes, offset);
            }
        });
        result
    }

    /// Bytes in the image.
    pub fn size(&self) -> u64 {
        self.tree.size()
    }

    /// Reads at `offset`. The range must be inside the image.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.check(offset, out.len());
        self.tree.read(offset, out);
    }

    /// Changes the content at `offset`, as bit rot would. The range must be inside the image.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len());
        if !bytes.is_empty() {
            self.tree
                .write(offset, &Buf::copy_of(bytes), 0..bytes.len());
        }
    }

    /// The whole content.
    pub fn to_bytes(&self) -> Vec<u8> {
        let size = usize::try_from(self.size()).expect("an image in memory fits memory");
        let mut out = vec![0; size];
        self.tree.read(0, &mut out);
        out
    }

    /// A hash of the differences from `base`, which has the same size: equal for images of equal content, and different
    /// for others except by chance. Reads only chunks that the two do not share.
    pub fn fingerprint(&self, base: &Image) -> u64 {
        let mut hasher = FixedHasher::default();
        self.tree.changes(&base.tree, &mut |offset, _, new| {
            hasher.write_u64(offset);
            if new.iter().any(|byte| *byte != 0) {
                hasher.write(new);
            }
        });
        hasher.finish()
    }

    /// Whether both have the same bytes.
    pub fn same_content(&self, other: &Image) -> bool {
        let mut same = self.size() == other.size();
        if same {
            self.tree.changes(&other.tree, &mut |_, _, _| same = false);
        }
        same
    }

    fn check(&self, offset: u64, len: usize) {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.size()), "inside");
    }

    /// Writes to a range that is still zero.
    fn fill(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.iter().any(|byte| *byte != 0) {
            self.write(offset, bytes);
        }
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes)", self.size())
    }
}
