//! Reading control files of mounts.
//!
//! A mount may be of another user's program, whose files may have no end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Longest control file that is read, in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// The text of a control file.
///
/// # Errors
/// Those of the file, and that it is too long.
pub fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = File::open(path)?;
    let len = file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match u64::try_from(len) {
        Ok(len) if len <= BYTES_MAX => Ok(text),
        _ => {
            let path = path.display();
            let why = format!("{path}: is longer than {} MiB", BYTES_MAX >> 20);
            Err(io::Error::other(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("longer than 16 MiB"), "{error}");
        assert!(read(Path::new("/proc/self/status")).is_ok());
    }
}
