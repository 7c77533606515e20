//! The key of a file: derived from the master key and the file's context.

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use hkdf::Hkdf;
use sha2::Sha512;
use siphasher::sip::SipHasher24;
use steadfs_vfs::{FileKind, FsError, Result};
use zeroize::{Zeroize, Zeroizing};

use crate::cipher::{Cipher, IV_SIZE};
use crate::context::{Context, KeyName, Mode, NONCE_SIZE, Policy, flag};

/// Bytes of the longest key of a mode.
const KEY_SIZE_MAX: usize = 64;

/// The uses of a derived key (`HKDF_CONTEXT_*`).
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum KeyUse {
    Identifier = 1,
    File = 2,
    DirectKey = 3,
    InoLblk64 = 4,
    DirHash = 5,
    InoLblk32 = 6,
    InoHash = 7,
}

/// A master key.
pub(crate) enum MasterKey {
    /// Of version 1: the key itself.
    V1(Zeroizing<Vec<u8>>),
    /// Of version 2: what HKDF-SHA512 has extracted, and the key's length.
    V2(Zeroizing<[u8; 64]>, usize),
}

impl MasterKey {
    /// A key of version 2.
    pub(crate) fn of_v2(key: &[u8]) -> Self {
        let (mut extracted, _) = Hkdf::<Sha512>::extract(None, key);
        let kept = Zeroizing::new(extracted.into());
        extracted.as_mut_slice().zeroize();
        Self::V2(kept, key.len())
    }

    fn len(&self) -> usize {
        match self {
            Self::V1(key) => key.len(),
            Self::V2(_, len) => *len,
        }
    }
}

/// HKDF-Expand as Linux uses it.
pub(crate) fn expand(extracted: &[u8; 64], what: KeyUse, info: &[&[u8]], out: &mut [u8]) {
    let hkdf = Hkdf::<Sha512>::from_prk(extracted).expect("it has the length of the hash");
    let what = [what as u8];
    let mut parts = vec![b"fscrypt\0".as_slice(), &what];
    parts.extend(info);
    hkdf.expand_multi_info(&parts, out)
        .expect("64 bytes can be derived");
}

/// What a key is derived for.
#[derive(Clone, Copy, Debug)]
pub struct FileOf<'a> {
    /// The inode's number.
    pub ino: u64,
    /// Regular files have a key for contents, directories and links one for names.
    pub kind: FileKind,
    /// Whether it is a case-insensitive directory, whose names are hashed with a key.
    pub folds: bool,
    /// The volume's UUID.
    pub uuid: &'a [u8; 16],
    /// Binary logarithm of the block size.
    pub block_bits: u32,
}

/// How initialization vectors differ among files with the same key.
enum Vectors {
    /// The key is the file's own.
    Index,
    Nonce([u8; NONCE_SIZE]),
    Ino64(u64),
    Ino32(u32),
}

/// Encrypts and decrypts one file's contents, names or target.
pub struct FileKey {
    cipher: Cipher,
    vectors: Vectors,
    unit: usize,
    pub(crate) padding: usize,
    /// The policy's name of the master key proves it. With a wrong key of version 1 all names are nonsense.
    pub(crate) is_proved: bool,
    /// Of the keyed hash of names.
    names_hash: Option<Zeroizing<[u8; 16]>>,
}

impl FileKey {
    /// # Errors
    /// `NoKey`: the master key is too short for the policy. `Invalid`: the policy does not suit the volume or file.
    pub(crate) fn derive(master: &MasterKey, context: &Context, file: &FileOf<'_>) -> Result<Self> {
        let policy = &context.policy;
        let mode = match file.kind {
            FileKind::Regular => policy.contents,
            _ => policy.names,
        };
        let needed = match policy.key {
            KeyName::Descriptor(_) => mode.key_size(),
            KeyName::Identifier(_) => mode.strength(),
        };
        if master.len() < needed {
            return Err(FsError::NoKey);
        }
        let unit = match policy.log2_unit {
            0 => 1 << file.block_bits,
            bits if u32::from(bits) <= file.block_bits => 1 << bits,
            _ => return Err(FsError::Invalid("encrypted data units exceed a block")),
        };
        let mut key = Zeroizing::new([0; KEY_SIZE_MAX]);
        let key = &mut key[..mode.key_size()];
        let mut names_hash = None;
        let vectors = match master {
            MasterKey::V1(master) => {
                if file.folds {
                    let why = "a case-insensitive directory has an encryption policy of version 1";
                    return Err(FsError::Invalid(why));
                }
                derive_v1(master, policy, &context.nonce, key)
            }
            MasterKey::V2(extracted, _) => {
                if file.kind == FileKind::Directory && file.folds {
                    let mut key = Zeroizing::new([0; 16]);
                    expand(extracted, KeyUse::DirHash, &[&context.nonce], &mut *key);
                    names_hash = Some(key);
                }
                derive_v2(extracted, context, (mode, file), key)
            }
        };
        Ok(Self {
            cipher: Cipher::new(mode, key).expect("it has the mode's length"),
            vectors,
            unit,
            padding: policy.padding(),
            is_proved: matches!(master, MasterKey::V2(..)),
            names_hash,
        })
    }

    fn vector(&self, index: u64) -> [u8; IV_SIZE] {
        let mut iv = [0; IV_SIZE];
        let index = match self.vectors {
            Vectors::Index => index,
            Vectors::Nonce(nonce) => {
                iv[8..8 + NONCE_SIZE].copy_from_slice(&nonce);
                index
            }
            Vectors::Ino64(ino) => index | ino << 32,
            Vectors::Ino32(hash) => u64::from(hash.wrapping_add(index as u32)),
        };
        iv[..8].copy_from_slice(&index.to_le_bytes());
        iv
    }

    /// Decrypts whole blocks of contents, which begin at byte `offset` of the file.
    pub fn decrypt(&self, offset: u64, data: &mut [u8]) {
        let first = offset / self.unit as u64;
        for (index, unit) in (first..).zip(data.chunks_exact_mut(self.unit)) {
            self.cipher.decrypt(&self.vector(index), unit);
        }
    }

    /// Encrypts whole blocks of contents, which begin at byte `offset` of the file.
    pub fn encrypt(&self, offset: u64, data: &mut [u8]) {
        let first = offset / self.unit as u64;
        for (index, unit) in (first..).zip(data.chunks_exact_mut(self.unit)) {
            self.cipher.encrypt(&self.vector(index), unit);
        }
    }

    /// Decrypts a name or target in place.
    pub(crate) fn decrypt_text(&self, text: &mut [u8]) {
        self.cipher.decrypt(&self.vector(0), text);
    }

    /// Encrypts a padded name or target in place.
    pub(crate) fn encrypt_text(&self, text: &mut [u8]) {
        self.cipher.encrypt(&self.vector(0), text);
    }

    /// The hash of a folded name in a case-insensitive directory; `None` in others.
    pub fn hash_name(&self, folded: &[u8]) -> Option<u64> {
        let key = self.names_hash.as_ref()?;
        Some(SipHasher24::new_with_key(key).hash(folded))
    }
}

/// Derives a file's key by AES-128-ECB with the nonce, or takes the first bytes of the master key.
fn derive_v1(master: &[u8], policy: &Policy, nonce: &[u8; NONCE_SIZE], key: &mut [u8]) -> Vectors {
    key.copy_from_slice(&master[..key.len()]);
    if policy.flags & flag::DIRECT_KEY != 0 {
        return Vectors::Nonce(*nonce);
    }
    let (blocks, _) = aes::Block::slice_as_chunks_mut(key);
    Aes128::new(nonce.into()).encrypt_blocks(blocks);
    Vectors::Index
}

fn derive_v2(
    extracted: &[u8; 64],
    context: &Context,
    (mode, file): (Mode, &FileOf<'_>),
    key: &mut [u8],
) -> Vectors {
    let number = [mode as u8];
    match context.policy.flags & !flag::PADDING {
        flag::DIRECT_KEY => {
            expand(extracted, KeyUse::DirectKey, &[&number], key);
            Vectors::Nonce(context.nonce)
        }
        flag::IV_INO_LBLK_64 => {
            expand(extracted, KeyUse::InoLblk64, &[&number, file.uuid], key);
            Vectors::Ino64(file.ino)
        }
        flag::IV_INO_LBLK_32 => {
            expand(extracted, KeyUse::InoLblk32, &[&number, file.uuid], key);
            let mut hash_key = Zeroizing::new([0; 16]);
            expand(extracted, KeyUse::InoHash, &[], &mut *hash_key);
            let hash = SipHasher24::new_with_key(&hash_key).hash(&file.ino.to_le_bytes());
            Vectors::Ino32(hash as u32)
        }
        _ => {
            expand(extracted, KeyUse::File, &[&context.nonce], key);
            Vectors::Index
        }
    }
}
