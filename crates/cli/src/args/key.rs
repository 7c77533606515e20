//! Arguments about keys of encrypted files.

use std::path::{Path, PathBuf};

use steadfs::{KeyName, VolumeKey};

/// Add, remove or list the keys of a mount's encrypted files.
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
    /// List the keys by their names, with the version of their policies.
    Status {
        /// The mount point.
        mountpoint: PathBuf,
    },
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
