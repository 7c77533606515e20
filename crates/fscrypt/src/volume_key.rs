//! A master key on its way to a volume.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use zeroize::Zeroizing;

use crate::context::KeyName;
use crate::keyring::{KEY_SIZES, key_identifier};

/// A master key, and what it is called. It is overwritten with zeros when it is dropped, and has no text.
#[derive(Clone)]
pub struct VolumeKey {
    descriptor: Option<[u8; 8]>,
    bytes: Zeroizing<Vec<u8>>,
}

impl VolumeKey {
    /// Reads the bytes of a key: from a file, or from standard input for `-`. A key for policies of version 1 has a
    /// descriptor.
    ///
    /// # Errors
    /// The file cannot be read; it has fewer than 16 or more than 64 bytes.
    pub fn read(path: &Path, descriptor: Option<[u8; 8]>) -> io::Result<Self> {
        let most = KEY_SIZES.end() + 1;
        // Never moved, which would leave a copy.
        let mut bytes = Zeroizing::new(Vec::with_capacity(most));
        let limit = most as u64;
        match path.as_os_str() == "-" {
            true => io::stdin().lock().take(limit).read_to_end(&mut bytes)?,
            false => File::open(path)?.take(limit).read_to_end(&mut bytes)?,
        };
        if !KEY_SIZES.contains(&bytes.len()) {
            let why = "a key has 16 to 64 bytes, and nothing follows them";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { descriptor, bytes })
    }

    /// What policies call it.
    pub fn name(&self) -> KeyName {
        match self.descriptor {
            Some(descriptor) => KeyName::Descriptor(descriptor),
            None => key_identifier(&self.bytes),
        }
    }

    /// What adds it, written to [`KEYS_FILE`](crate::KEYS_FILE).
    pub fn command(&self) -> Zeroizing<String> {
        let name = match self.descriptor {
            Some(descriptor) => KeyName::Descriptor(descriptor).to_string(),
            None => "v2".to_owned(),
        };
        let digit = |value: u8| char::from_digit(value.into(), 16).expect("it is below 16");
        // Not grown, which would leave a copy.
        let mut command = Zeroizing::new(String::with_capacity(32 + 2 * self.bytes.len()));
        for text in ["add ", &name, " "] {
            command.push_str(text);
        }
        for byte in &*self.bytes {
            command.push(digit(byte >> 4));
            command.push(digit(byte & 15));
        }
        command
    }
}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeKey({})", self.name())
    }
}
