//! A policy on its way to an empty directory: text that is written to [`KEYS_FILE`](crate::KEYS_FILE).

use steadfs_vfs::{FsError, Result};

use crate::context::{KeyName, Mode, Policy, flag};

/// The word that such a command begins with. Directly behind it is the number of the directory's inode.
pub const POLICY_COMMAND: &str = "policy";

/// Which files have the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeySharing {
    /// None.
    #[default]
    PerFile,
    /// All that have the policy's modes.
    DirectKey,
    /// All of the volume, with inode numbers in 64-bit initialization vectors.
    InoLblk64,
    /// All of the volume, with hashed inode numbers in 32-bit initialization vectors.
    InoLblk32,
}

/// What a policy has besides its key.
#[derive(Clone, Copy, Debug)]
pub struct PolicyOptions {
    /// The mode of contents.
    pub contents: Mode,
    /// The mode of names and targets of links.
    pub names: Mode,
    /// Names are padded to a multiple of this: 4, 8, 16 or 32 bytes.
    pub padding: u8,
    /// Which files have the same key.
    pub sharing: KeySharing,
    /// Bytes that are encrypted together; a block, if not given.
    pub unit: Option<u32>,
}

impl Policy {
    /// A policy with this key.
    ///
    /// # Errors
    /// `Invalid`: Linux makes no such policy.
    pub fn new(key: KeyName, options: &PolicyOptions) -> Result<Self> {
        let Some(padding) = [4, 8, 16, 32].iter().position(|p| *p == options.padding) else {
            return Err(FsError::Invalid("names are padded to 4, 8, 16 or 32 bytes"));
        };
        let sharing = match options.sharing {
            KeySharing::PerFile => 0,
            KeySharing::DirectKey => flag::DIRECT_KEY,
            KeySharing::InoLblk64 => flag::IV_INO_LBLK_64,
            KeySharing::InoLblk32 => flag::IV_INO_LBLK_32,
        };
        let log2_unit = match options.unit {
            None => 0,
            Some(unit) if unit.is_power_of_two() && unit > 1 => unit.trailing_zeros() as u8,
            Some(_) => return Err(FsError::Invalid("data units have a power of two of bytes")),
        };
        if log2_unit != 0 && matches!(key, KeyName::Descriptor(_)) {
            return Err(FsError::Invalid("policies of version 1 have no data units"));
        }
        let policy = Self {
            key,
            contents: options.contents,
            names: options.names,
            flags: padding as u8 | sharing,
            log2_unit,
        };
        policy.check()
    }

    /// The command that sets it, without the number of the inode.
    pub fn command(&self) -> String {
        let (contents, names) = (self.contents as u8, self.names as u8);
        let (key, flags, unit) = (self.key, self.flags, self.log2_unit);
        format!("{POLICY_COMMAND} {key} {contents} {names} {flags} {unit}")
    }
}

/// A policy for a directory.
#[derive(Debug)]
pub struct PolicyCommand {
    /// The number of the directory's inode, as callers of the file system know it.
    pub dir: u64,
    /// The policy.
    pub policy: Policy,
}

impl PolicyCommand {
    /// Reads a command; `None`: it is none about a policy.
    ///
    /// # Errors
    /// `BadOption`: its words are wrong. `Invalid`: Linux makes no such policy.
    pub fn parse(command: &[u8]) -> Result<Option<Self>> {
        let text = std::str::from_utf8(command).unwrap_or_default();
        let mut words = text.split_ascii_whitespace();
        if words.next() != Some(POLICY_COMMAND) {
            return Ok(None);
        }
        let wrong = || FsError::BadOption("not a directory and a policy".to_owned());
        let words: Vec<&str> = words.collect();
        let [dir, key, contents, names, flags, unit] = words[..] else {
            return Err(wrong());
        };
        let number = |text: &str| text.parse::<u8>().map_err(|_| wrong());
        let mode = |text: &str| {
            let unknown = FsError::Invalid("the encryption policy has an unknown mode");
            Mode::of(number(text)?).ok_or(unknown)
        };
        let policy = Policy {
            key: KeyName::parse(key).ok_or_else(wrong)?,
            contents: mode(contents)?,
            names: mode(names)?,
            flags: number(flags)?,
            log2_unit: number(unit)?,
        };
        let policy = policy.check()?;
        if policy.needs_stable_inodes() && policy.log2_unit != 0 {
            // Large files would have numbers of more than the vector's 32 bits.
            let why = "the encryption policy has small data units and inode numbers in vectors";
            return Err(FsError::Invalid(why));
        }
        Ok(Some(Self {
            dir: dir.parse().map_err(|_| wrong())?,
            policy,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const OPTIONS: PolicyOptions = PolicyOptions {
        contents: Mode::Aes256Xts,
        names: Mode::Aes256Cts,
        padding: 32,
        sharing: KeySharing::PerFile,
        unit: None,
    };

    #[test]
    fn a_policy_is_read_from_its_command() {
        let key = KeyName::Identifier([0x5a; 16]);
        let unit = Some(512);
        let options = PolicyOptions { unit, ..OPTIONS };
        let policy = Policy::new(key, &options).unwrap();
        let command = policy.command().replacen("policy", "policy 12", 1);
        let read = PolicyCommand::parse(command.as_bytes()).unwrap().unwrap();
        assert_eq!((read.dir, read.policy), (12, policy));
        assert!(PolicyCommand::parse(b"remove 0123").unwrap().is_none());
        PolicyCommand::parse(b"policy 12 5a5a 1 4 3 0").unwrap_err();
    }

    #[test]
    fn policies_that_linux_does_not_make_are_refused() {
        let (v1, v2) = (KeyName::Descriptor([1; 8]), KeyName::Identifier([1; 16]));
        let refused = |key, options| matches!(Policy::new(key, &options), Err(FsError::Invalid(_)));
        let padding = 5;
        assert!(refused(v2, PolicyOptions { padding, ..OPTIONS }));
        let unit = Some(1000);
        assert!(refused(v2, PolicyOptions { unit, ..OPTIONS }));
        let unit = Some(4096);
        assert!(refused(v1, PolicyOptions { unit, ..OPTIONS }));
        let sharing = KeySharing::InoLblk64;
        assert!(refused(v1, PolicyOptions { sharing, ..OPTIONS }));
        let sharing = KeySharing::DirectKey;
        assert!(refused(v2, PolicyOptions { sharing, ..OPTIONS }));
        let names = Mode::Adiantum;
        assert!(refused(v2, PolicyOptions { names, ..OPTIONS }));
    }
}
