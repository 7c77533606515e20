//! Policies and contexts: which key a directory tree has, and how it is used.
//!
//! A context is stored in the extended attribute `c` of each encrypted inode: a policy, which all files of a tree share,
//! and a nonce. Version 1 names its key by a descriptor, which the user chose; version 2 by an identifier, which is derived
//! from the key.

use std::fmt;

use steadfs_base::Corruption;
use steadfs_rt::random_bytes;
use steadfs_vfs::{FileKind, FsError, Result};

use crate::keyring::from_hex;

/// Bytes of a nonce.
pub const NONCE_SIZE: usize = 16;
/// Bytes of a context of version 2, which is the longer one.
pub const CONTEXT_SIZE_MAX: usize = 40;
/// Bytes of a context of version 1.
const CONTEXT_SIZE_V1: usize = 28;

/// `FSCRYPT_POLICY_FLAG*`.
pub(crate) mod flag {
    /// To which multiple of 4, 8, 16 or 32 bytes names are padded.
    pub(crate) const PADDING: u8 = 3;
    /// Files share one key; the nonce is in their initialization vectors.
    pub(crate) const DIRECT_KEY: u8 = 4;
    /// Files share one key; 64-bit vectors of inode number and block.
    pub(crate) const IV_INO_LBLK_64: u8 = 8;
    /// The same with 32 bits.
    pub(crate) const IV_INO_LBLK_32: u8 = 16;
    pub(crate) const ALL: u8 = 31;
}

/// A cipher mode of contents or names (`FSCRYPT_MODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// AES-256-XTS, for contents.
    Aes256Xts = 1,
    /// AES-256-CTS-CBC, for names.
    Aes256Cts = 4,
    /// AES-128-CBC-ESSIV, for contents.
    Aes128CbcEssiv = 5,
    /// AES-128-CTS-CBC, for names.
    Aes128Cts = 6,
    /// Adiantum, for both.
    Adiantum = 9,
    /// AES-256-HCTR2, for names.
    Aes256Hctr2 = 10,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes256Xts => "AES-256-XTS",
            Self::Aes256Cts => "AES-256-CTS",
            Self::Aes128CbcEssiv => "AES-128-CBC",
            Self::Aes128Cts => "AES-128-CTS",
            Self::Adiantum => "Adiantum",
            Self::Aes256Hctr2 => "AES-256-HCTR2",
        })
    }
}

impl Mode {
    /// The mode with this name, in any case: `AES-256-XTS`, `AES-256-CTS`, `AES-128-CBC`, `AES-128-CTS`, `Adiantum`,
    /// `AES-256-HCTR2`.
    pub fn parse(text: &str) -> Option<Self> {
        let is = |mode: &Self| mode.to_string().eq_ignore_ascii_case(text);
        Self::ALL.into_iter().find(is)
    }

    const ALL: [Self; 6] = [
        Self::Aes256Xts,
        Self::Aes256Cts,
        Self::Aes128CbcEssiv,
        Self::Aes128Cts,
        Self::Adiantum,
        Self::Aes256Hctr2,
    ];

    pub(crate) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| *mode as u8 == number)
    }

    /// Bytes of the mode's key.
    pub(crate) const fn key_size(self) -> usize {
        match self {
            Self::Aes256Xts => 64,
            Self::Aes128CbcEssiv | Self::Aes128Cts => 16,
            Self::Aes256Cts | Self::Adiantum | Self::Aes256Hctr2 => 32,
        }
    }

    /// Bytes that a master key needs for the mode's strength.
    pub(crate) const fn strength(self) -> usize {
        match self {
            Self::Aes128CbcEssiv | Self::Aes128Cts => 16,
            _ => 32,
        }
    }
}

/// What a policy calls its master key. Its text is hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyName {
    /// Of version 1.
    Descriptor([u8; 8]),
    /// Of version 2.
    Identifier([u8; 16]),
}

impl KeyName {
    /// Reads a name's text: 16 digits for a descriptor, 32 for an identifier.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = from_hex(text)?;
        let descriptor = || bytes.as_slice().try_into().ok().map(Self::Descriptor);
        let identifier = || bytes.as_slice().try_into().ok().map(Self::Identifier);
        descriptor().or_else(identifier)
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match self {
            Self::Descriptor(bytes) => bytes.as_slice(),
            Self::Identifier(bytes) => bytes,
        };
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How a directory tree is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The master key.
    pub key: KeyName,
    /// The mode of contents.
    pub contents: Mode,
    /// The mode of names and targets of links.
    pub names: Mode,
    pub(crate) flags: u8,
    /// Binary logarithm of the bytes of a data unit; 0: a block of the file system.
    pub(crate) log2_unit: u8,
}

impl Policy {
    /// Names are padded to a multiple of this.
    pub(crate) const fn padding(&self) -> usize {
        4 << (self.flags & flag::PADDING)
    }

    /// Whether inode numbers are in initialization vectors, and must never change.
    pub const fn needs_stable_inodes(&self) -> bool {
        self.flags & (flag::IV_INO_LBLK_64 | flag::IV_INO_LBLK_32) != 0
    }

    /// Refuses what Linux does not make.
    pub(crate) fn check(self) -> Result<Self> {
        let bad = |what| Err(FsError::Invalid(what));
        let both = (self.contents, self.names);
        let is_v2 = matches!(self.key, KeyName::Identifier(_));
        let is_pair = match both {
            (Mode::Aes256Xts, Mode::Aes256Cts)
            | (Mode::Aes128CbcEssiv, Mode::Aes128Cts)
            | (Mode::Adiantum, Mode::Adiantum) => true,
            (Mode::Aes256Xts, Mode::Aes256Hctr2) => is_v2,
            _ => false,
        };
        if !is_pair {
            return bad("the encryption policy has an unknown combination of modes");
        }
        let known = match is_v2 {
            true => flag::ALL,
            false => flag::PADDING | flag::DIRECT_KEY,
        };
        let shared = self.flags & !flag::PADDING;
        if self.flags & !known != 0 || shared.count_ones() > 1 {
            return bad("the encryption policy has unknown flags");
        }
        if shared == flag::DIRECT_KEY && both != (Mode::Adiantum, Mode::Adiantum) {
            return bad("the encryption policy shares a key among files in a mode that cannot");
        }
        if self.needs_stable_inodes() && self.contents != Mode::Aes256Xts {
            return bad("the encryption policy has inode numbers in vectors of a mode that cannot");
        }
        if self.log2_unit != 0 && !(9..=16).contains(&self.log2_unit) {
            return bad("the encryption policy has an unknown size of data units");
        }
        Ok(self)
    }
}

/// An inode's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The policy of its tree.
    pub policy: Policy,
    /// Random bytes of this inode.
    pub nonce: [u8; NONCE_SIZE],
}

/// Whether inodes of this kind are encrypted; others have only their names in a directory.
pub const fn may_be_encrypted(kind: FileKind) -> bool {
    matches!(
        kind,
        FileKind::Regular | FileKind::Directory | FileKind::Symlink
    )
}

impl Context {
    /// The context of a new inode, with random bytes of its own.
    pub fn of_new_inode(policy: Policy) -> Self {
        let mut nonce = [0; NONCE_SIZE];
        random_bytes(&mut nonce);
        Self { policy, nonce }
    }

    /// Reads the value of the attribute.
    ///
    /// # Errors
    /// `Corrupt`: it is none. `Invalid`: its policy is not known here (for example, with SM4).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bad = || FsError::from(Corruption::new("encryption context"));
        let mode = |at: usize| {
            let unknown = FsError::Invalid("the encryption policy has an unknown mode");
            Mode::of(bytes[at]).ok_or(unknown)
        };
        let (key, log2_unit, nonce) = match (bytes.first(), bytes.len()) {
            (Some(1), CONTEXT_SIZE_V1) => {
                let key = bytes[4..12].try_into().map_err(|_| bad())?;
                (KeyName::Descriptor(key), 0, 12)
            }
            (Some(2), CONTEXT_SIZE_MAX) if bytes[5..8] == [0; 3] => {
                let key = bytes[8..24].try_into().map_err(|_| bad())?;
                (KeyName::Identifier(key), bytes[4], 24)
            }
            _ => return Err(bad()),
        };
        let policy = Policy {
            key,
            contents: mode(1)?,
            names: mode(2)?,
            flags: bytes[3],
            log2_unit,
        };
        Ok(Self {
            policy: policy.check()?,
            nonce: bytes[nonce..].try_into().map_err(|_| bad())?,
        })
    }
}

impl Context {
    /// The value of the attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let policy = &self.policy;
        let modes = [policy.contents as u8, policy.names as u8, policy.flags];
        let mut bytes = Vec::with_capacity(CONTEXT_SIZE_MAX);
        match &policy.key {
            KeyName::Descriptor(descriptor) => {
                bytes.push(1);
                bytes.extend(modes);
                bytes.extend(descriptor);
            }
            KeyName::Identifier(identifier) => {
                bytes.push(2);
                bytes.extend(modes);
                bytes.extend([policy.log2_unit, 0, 0, 0]);
                bytes.extend(identifier);
            }
        }
        bytes.extend(self.nonce);
        bytes
    }
}

#[cfg(test)]
mod tests;
