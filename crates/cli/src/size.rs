//! Sizes of volumes.

use steadfs_base::size;

use crate::failure::Failure;

/// Parses the size of a volume, of which a number without a unit counts units of `bare` bytes ([`steadfs_base::size`]).
pub fn parse(text: &str, bare: u64) -> Result<u64, Failure> {
    let fail = |why: String| Failure::plain(format!("size {text}: {why}"));
    match size::parse(text, bare) {
        Ok(0) => Err(fail("a volume has more than 0 bytes".to_owned())),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(fail(why.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_not_empty() {
        assert_eq!(parse("64MiB", 1024).unwrap(), 64 << 20);
        assert_eq!(parse("64", 1024).unwrap(), 64 << 10);
        for (text, why) in [
            ("0", "size 0: a volume has more than 0 bytes"),
            ("-64M", "size -64M: a size is not negative"),
        ] {
            assert_eq!(parse(text, 1024).unwrap_err().message, why);
        }
    }
}
