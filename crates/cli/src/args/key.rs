//! Arguments about keys of encrypted files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use steadfs::{CipherMode, KeyName, KeyPolicy, KeySharing, PolicyOptions, VolumeKey};

use super::offline::Open;
use super::size;

/// Add, remove or list the keys of a mount's encrypted files, and encrypt directories.
///
/// Keys are those of Linux's file encryption (fscrypt): 16 to 64 bytes. They are kept in the memory of the mount's server until
/// they are removed, and wiped then. Commands on images take --key-file.
#[derive(Debug, clap::Args)]
pub struct Key {
    #[command(subcommand)]
    pub action: KeyAction,
}

#[derive(Debug, clap::Subcommand)]
pub enum KeyAction {
    /// Add a key, and print what policies call it.
    Add {
        /// The mount point.
        mountpoint: PathBuf,
        /// The file with the bytes of the key; without it, or with -, they are read from standard input.
        #[arg(default_value = "-")]
        file: PathBuf,
        /// The key's descriptor, 16 hexadecimal digits, for policies of version 1.
        #[arg(long, value_name = "DESCRIPTOR", value_parser = descriptor)]
        v1: Option<[u8; 8]>,
    },
    /// Remove a key: names become encoded again, and files cannot be opened.
    Remove {
        /// The mount point.
        mountpoint: PathBuf,
        /// What policies call the key, as `status` prints it.
        #[arg(value_parser = key_name)]
        name: KeyName,
    },
    /// Encrypt what will be made in an empty directory; its key must be there.
    SetPolicy(SetPolicy),
    /// List the keys by their names, with the version of their policies.
    Status {
        /// The mount point.
        mountpoint: PathBuf,
    },
}

/// The directory and its policy; modes have the names of fscryptctl(1).
#[derive(Debug, clap::Args)]
pub struct SetPolicy {
    /// A directory of a mount, or IMAGE:/PATH on an image, whose key --key-file gives.
    #[arg(value_name = "DIRECTORY|IMAGE:/PATH")]
    pub place: OsString,
    /// What policies call the key, as `add` prints it.
    #[arg(value_parser = key_name)]
    pub name: KeyName,
    /// The mode of contents: AES-256-XTS, AES-128-CBC or Adiantum.
    #[arg(long, value_name = "MODE", default_value = "AES-256-XTS", value_parser = mode)]
    pub contents: CipherMode,
    /// The mode of names: AES-256-CTS, AES-256-HCTR2, AES-128-CTS or Adiantum.
    #[arg(long, value_name = "MODE", default_value = "AES-256-CTS", value_parser = mode)]
    pub filenames: CipherMode,
    /// Pad names to a multiple of 4, 8, 16 or 32 bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 32)]
    pub padding: u8,
    /// Encrypt pieces of this size and not blocks: 512 to the size of a block.
    #[arg(long, value_name = "BYTES", value_parser = size::<u32>)]
    pub data_unit_size: Option<u32>,
    /// Give all files the same key (Adiantum).
    #[arg(long, conflicts_with_all = ["iv_ino_lblk_64", "iv_ino_lblk_32"])]
    pub direct_key: bool,
    /// The same for encryption in UFS devices.
    #[arg(long, conflicts_with = "iv_ino_lblk_32")]
    pub iv_ino_lblk_64: bool,
    /// The same for encryption in eMMC devices.
    #[arg(long)]
    pub iv_ino_lblk_32: bool,
    #[command(flatten)]
    pub open: Open,
}

impl SetPolicy {
    /// The policy.
    ///
    /// # Errors
    /// Linux makes no such policy.
    pub fn policy(&self) -> steadfs_vfs::Result<KeyPolicy> {
        let sharing = match (self.direct_key, self.iv_ino_lblk_64, self.iv_ino_lblk_32) {
            (true, _, _) => KeySharing::DirectKey,
            (_, true, _) => KeySharing::InoLblk64,
            (_, _, true) => KeySharing::InoLblk32,
            _ => KeySharing::PerFile,
        };
        let options = PolicyOptions {
            contents: self.contents,
            names: self.filenames,
            padding: self.padding,
            sharing,
            unit: self.data_unit_size,
        };
        KeyPolicy::new(self.name, &options)
    }
}

fn mode(text: &str) -> Result<CipherMode, &'static str> {
    CipherMode::parse(text).ok_or("no mode of encryption has this name")
}

fn key_name(text: &str) -> Result<KeyName, &'static str> {
    KeyName::parse(text).ok_or("needs 16 or 32 hexadecimal digits")
}

fn descriptor(text: &str) -> Result<[u8; 8], &'static str> {
    match KeyName::parse(text) {
        Some(KeyName::Descriptor(descriptor)) => Ok(descriptor),
        _ => Err("needs 16 hexadecimal digits"),
    }
}

/// Reads the key that `--key-file` names.
pub fn volume_key(text: &str) -> Result<VolumeKey, String> {
    let (descriptor, file) = match text.split_once('=') {
        Some((name, file)) if name.len() == 16 => (Some(descriptor(name)?), file),
        _ => (None, text),
    };
    steadfs_rt::forbid_core_dumps();
    VolumeKey::read(Path::new(file), descriptor).map_err(|error| error.to_string())
}
