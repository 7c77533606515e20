//! Encrypted volumes of the laboratory: all have one key.

use steadfs::{KEYS_FILE, POLICY_COMMAND};
use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileSystem, InodeFlags, Result};

/// Gives a mount the key.
///
/// # Errors
/// The volume has no encryption, or only reads.
pub fn add_key(fs: &dyn FileSystem) -> Result<()> {
    fs.write_control(KEYS_FILE, format!("add v2 {}", "5e".repeat(64)).as_bytes())
}

/// Makes a directory below the root, which itself cannot be encrypted, on a mount that has the key; `folds`: it is
/// case-insensitive, too.
///
/// # Errors
/// The volume cannot have such a directory.
pub fn make_dir(fs: &dyn FileSystem, cx: &Cx, name: &[u8], folds: bool) -> Result<InodeNo> {
    let dir = fs.mkdir(cx, fs.root(), name, 0o755)?.ino;
    let keys = String::from_utf8_lossy(&fs.read_control(KEYS_FILE)?).into_owned();
    let key = keys.split_whitespace().last().unwrap_or_default();
    // AES-256-XTS and AES-256-CTS, names in multiples of 16 bytes.
    let policy = format!("{POLICY_COMMAND} {} {key} 1 4 2 0", dir.0);
    fs.write_control(KEYS_FILE, policy.as_bytes())?;
    if folds {
        let had = fs.flags(cx, dir)?.flags;
        fs.set_flags(cx, dir, had.union(InodeFlags::CASEFOLD))?;
    }
    Ok(dir)
}
