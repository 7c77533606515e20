//! The master keys of a volume, and the keys of the files that were used last.
//!
//! **Problem.** A file's key takes several hashes, and its inode can be evicted between two reads. **Rule.** Keys of files are
//! kept, up to [`FILES_MAX`] of them; a change of the master keys drops them all, also those that are being derived
//! meanwhile. A volume without master keys pays one look at a counter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use steadfs_base::InodeNo;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};
use zeroize::Zeroizing;

use crate::context::{Context, KeyName};
use crate::file_key::{FileKey, FileOf, KeyUse, MasterKey, expand};

/// The control file of a volume's keys.
pub const KEYS_FILE: &str = "keys";

/// Most files whose keys are kept: 4 MiB.
const FILES_MAX: usize = 1024;
/// Most master keys: their names fit in one answer to `steadfs key status`.
const KEYS_MAX: usize = 100;
/// Lengths of master keys, in bytes.
pub(crate) const KEY_SIZES: std::ops::RangeInclusive<usize> = 16..=64;

/// Inode number, generation, and whether it is a case-insensitive directory, which has a key more.
type FileId = (InodeNo, u32, bool);

#[derive(Default)]
struct Keys {
    masters: BTreeMap<KeyName, Arc<MasterKey>>,
    files: BTreeMap<FileId, Option<Arc<FileKey>>>,
    /// Number of changes of the master keys.
    changes: u64,
}

/// The keys of a volume.
pub struct Keyring {
    keys: Mutex<Keys>,
    /// Number of master keys.
    count: AtomicUsize,
}

impl Default for Keyring {
    fn default() -> Self {
        Self {
            keys: Mutex::new(Rank::Leaf, Keys::default()),
            count: AtomicUsize::new(0),
        }
    }
}

/// The identifier of a master key of version 2.
pub fn key_identifier(key: &[u8]) -> KeyName {
    let master = MasterKey::of_v2(key);
    match &master {
        MasterKey::V2(extracted, _) => identifier_of(extracted),
        MasterKey::V1(_) => unreachable!("it was made as version 2"),
    }
}

fn identifier_of(extracted: &[u8; 64]) -> KeyName {
    let mut identifier = [0; 16];
    expand(extracted, KeyUse::Identifier, &[], &mut identifier);
    KeyName::Identifier(identifier)
}

impl Keyring {
    /// Adds a master key: for policies of version 1 by a descriptor, else by its identifier, which is returned.
    ///
    /// # Errors
    /// `Invalid`: a key has 16 to 64 bytes. `NoSpace`: the volume has 100 keys. `Exists`: another key has the descriptor.
    pub fn add(&self, descriptor: Option<[u8; 8]>, key: &[u8]) -> Result<KeyName> {
        if !KEY_SIZES.contains(&key.len()) {
            return Err(FsError::Invalid("a key has 16 to 64 bytes"));
        }
        let (name, master) = match descriptor {
            Some(descriptor) => {
                let key = Zeroizing::new(key.to_vec());
                (KeyName::Descriptor(descriptor), MasterKey::V1(key))
            }
            None => (key_identifier(key), MasterKey::of_v2(key)),
        };
        self.change(|masters| {
            if masters.len() >= KEYS_MAX && !masters.contains_key(&name) {
                return Err(FsError::NoSpace);
            }
            // Files that are in use would change their keys.
            match (masters.get(&name).map(|known| &**known), &master) {
                (Some(MasterKey::V1(known)), MasterKey::V1(new)) if known != new => {
                    return Err(FsError::Exists);
                }
                _ => masters.insert(name, Arc::new(master)),
            };
            Ok(name)
        })
    }

    /// Removes a master key.
    ///
    /// # Errors
    /// `NoKey`: it is not there.
    pub fn remove(&self, name: KeyName) -> Result<()> {
        match self.change(|masters| masters.remove(&name)) {
            Some(_) => Ok(()),
            None => Err(FsError::NoKey),
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<KeyName, Arc<MasterKey>>) -> T) -> T {
        let mut keys = self.keys.lock();
        let result = change(&mut keys.masters);
        keys.files.clear();
        keys.changes += 1;
        self.count.store(keys.masters.len(), Ordering::Release);
        result
    }

    /// The names of all master keys.
    pub fn names(&self) -> Vec<KeyName> {
        self.keys.lock().masters.keys().copied().collect()
    }

    /// The key of a file with this inode number and generation; `None`: its master key is not there. `load` reads its
    /// context; it is called only if there are master keys.
    ///
    /// # Errors
    /// Those of `load`; `Invalid`: the file's policy is not known here, or does not suit the volume.
    pub fn file_key(
        &self,
        generation: u32,
        file: &FileOf<'_>,
        load: impl FnOnce() -> Result<Context>,
    ) -> Result<Option<Arc<FileKey>>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let id = (InodeNo(file.ino), generation, file.folds);
        let changes = {
            let keys = self.keys.lock();
            if let Some(known) = keys.files.get(&id) {
                return Ok(known.clone());
            }
            keys.changes
        };
        let context = load()?;
        let master = self.keys.lock().masters.get(&context.policy.key).cloned();
        let derived = match master {
            Some(master) => match FileKey::derive(&master, &context, file) {
                Err(FsError::NoKey) => None,
                derived => Some(Arc::new(derived?)),
            },
            None => None,
        };
        let mut keys = self.keys.lock();
        if keys.changes == changes {
            if keys.files.len() >= FILES_MAX {
                keys.files.clear();
            }
            keys.files.insert(id, derived.clone());
        }
        Ok(derived)
    }

    /// The key of a new file with this context, which has no number yet that others know.
    ///
    /// # Errors
    /// `NoKey`: its master key is not there. As [`Keyring::file_key`].
    pub fn new_file_key(&self, context: &Context, file: &FileOf<'_>) -> Result<FileKey> {
        let master = self.keys.lock().masters.get(&context.policy.key).cloned();
        FileKey::derive(&*master.ok_or(FsError::NoKey)?, context, file)
    }

    /// The content of [`KEYS_FILE`]: a line for each master key.
    pub fn show(&self) -> String {
        let kind = |name: &KeyName| match name {
            KeyName::Descriptor(_) => "v1",
            KeyName::Identifier(_) => "v2",
        };
        let lines = self.names().into_iter();
        lines
            .map(|name| format!("{} {name}\n", kind(&name)))
            .collect()
    }

    /// Carries out what was written to [`KEYS_FILE`]: `add v2 KEY`, `add DESCRIPTOR KEY` (for policies of version 1) or
    /// `remove NAME`, in hexadecimal digits.
    ///
    /// # Errors
    /// `BadOption`: it is none of these. Those of [`Keyring::add`] and [`Keyring::remove`].
    pub fn write(&self, value: &[u8]) -> Result<()> {
        let wrong = |why: &str| FsError::BadOption(why.to_owned());
        #[cfg(unix)]
        steadfs_rt::forbid_core_dumps();
        let text = std::str::from_utf8(value).unwrap_or_default();
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["add", name, key] => {
                let descriptor = match (*name, KeyName::parse(name)) {
                    ("v2", _) => None,
                    (_, Some(KeyName::Descriptor(descriptor))) => Some(descriptor),
                    _ => return Err(wrong("a key's descriptor has 16 hexadecimal digits")),
                };
                let key = from_hex(key).ok_or_else(|| wrong("the key is not hexadecimal"))?;
                self.add(descriptor, &key).map(drop)
            }
            ["remove", name] => match KeyName::parse(name) {
                Some(name) => self.remove(name),
                None => Err(wrong("a key's name has 16 or 32 hexadecimal digits")),
            },
            _ => Err(wrong("neither a key to add nor one to remove")),
        }
    }
}

/// The bytes that hexadecimal digits stand for.
pub(crate) fn from_hex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    // Not grown, which would leave a copy.
    let mut bytes = Zeroizing::new(Vec::with_capacity(pairs.len()));
    for pair in pairs {
        let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
        bytes.push((high? << 4 | low?) as u8);
    }
    rest.is_empty().then_some(bytes)
}

#[cfg(test)]
mod tests;
