//! File encryption as in Linux (Documentation/filesystems/fscrypt.rst), for both file systems.
//!
//! **Problem.** Contents and names of an encrypted directory tree are stored encrypted, with keys that follow from a master
//! key and a context, which each encrypted inode has. **Rule.** A volume has a [`Keyring`] of master keys. A file whose
//! master key is there has a [`FileKey`], by which its blocks, or the names of a directory, or the target of a link are
//! decrypted. Nothing here reads a device: file systems pass contexts and bytes.
//!
//! Master keys, derived keys and states of ciphers are overwritten with zeros when they are dropped.
//!
//! Ciphers, key derivation and hashes come from crates. Written here are the modes that no well-kept crate has: the
//! compositions of [`adiantum`] and [`hctr2`], and [`xts`], which needs whole groups of blocks to be fast.

#![forbid(unsafe_code)]

mod adiantum;
mod cipher;
mod context;
mod file_key;
mod hctr2;
mod keyring;
mod names;
mod policy_command;
mod volume_key;
mod xts;

pub use context::{CONTEXT_SIZE_MAX, Context, KeyName, Mode, Policy, may_be_encrypted};
pub use file_key::{FileKey, FileOf};
pub use keyring::{KEYS_FILE, Keyring, key_identifier};
pub use policy_command::{KeySharing, POLICY_COMMAND, PolicyCommand, PolicyOptions};
pub use volume_key::VolumeKey;
