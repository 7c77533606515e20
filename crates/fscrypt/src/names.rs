//! Encrypted names, and targets of symbolic links.
//!
//! A name is padded with zeros to a multiple that the policy gives, at least 16 bytes, at most 255. A link's content is the
//! encrypted target behind its length in 16 bits.

use steadfs_base::Corruption;
use steadfs_base::limits::NAME_MAX;
use steadfs_vfs::{FsError, Result};

use crate::cipher::INPUT_MIN;
use crate::file_key::FileKey;

impl FileKey {
    /// The encrypted form of a name of at most 255 bytes.
    pub fn encrypt_name(&self, name: &[u8]) -> Vec<u8> {
        self.encrypt_padded(name, NAME_MAX)
    }

    /// The content of a symbolic link with this target, on a volume with blocks of this size.
    ///
    /// # Errors
    /// `NameTooLong`.
    pub fn encrypt_target(&self, target: &[u8], block_size: usize) -> Result<Vec<u8>> {
        // With its length before it, and as in Linux a byte after it.
        let most = block_size.saturating_sub(3);
        if target.len() > most {
            return Err(FsError::NameTooLong);
        }
        let encrypted = self.encrypt_padded(target, most);
        let len = u16::try_from(encrypted.len()).map_err(|_| FsError::NameTooLong)?;
        Ok([&len.to_le_bytes()[..], &encrypted].concat())
    }

    fn encrypt_padded(&self, plain: &[u8], most: usize) -> Vec<u8> {
        let len = plain.len().max(INPUT_MIN).next_multiple_of(self.padding);
        let mut text = plain.to_vec();
        text.resize(len.min(most), 0);
        self.encrypt_text(&mut text);
        text
    }

    /// The name with this encrypted form.
    ///
    /// # Errors
    /// `Corrupt`: it is too short, or no name of a file; `NoKey` instead, if the key may be a wrong one.
    pub fn decrypt_name(&self, encrypted: &[u8]) -> Result<Vec<u8>> {
        let name = self.decrypt_padded(encrypted)?;
        let is_name = !name.is_empty() && !name.contains(&b'/') && name != b"." && name != b"..";
        match is_name {
            true => Ok(name),
            false => Err(self.wrong("an encrypted name is none")),
        }
    }

    /// The target of a symbolic link with this content.
    ///
    /// # Errors
    /// `Corrupt`: its length is wrong, or it is empty; `NoKey` instead, if the key may be a wrong one.
    pub fn decrypt_target(&self, content: &[u8]) -> Result<Vec<u8>> {
        let bad = || {
            FsError::from(Corruption::new(
                "an encrypted symbolic link has a wrong length",
            ))
        };
        let (len, encrypted) = content.split_first_chunk::<2>().ok_or_else(bad)?;
        let encrypted = encrypted.get(..u16::from_le_bytes(*len).into());
        let target = self.decrypt_padded(encrypted.ok_or_else(bad)?)?;
        match target.is_empty() {
            true => Err(self.wrong("an encrypted symbolic link has no target")),
            false => Ok(target),
        }
    }

    /// The error for text that cannot be what was encrypted.
    fn wrong(&self, what: &str) -> FsError {
        match self.is_proved {
            true => Corruption::new(what.to_owned()).into(),
            false => FsError::NoKey,
        }
    }

    fn decrypt_padded(&self, encrypted: &[u8]) -> Result<Vec<u8>> {
        if encrypted.len() < INPUT_MIN {
            return Err(Corruption::new("encrypted text is too short").into());
        }
        let mut text = encrypted.to_vec();
        self.decrypt_text(&mut text);
        let end = text.iter().position(|&byte| byte == 0);
        text.truncate(end.unwrap_or(text.len()));
        Ok(text)
    }
}
