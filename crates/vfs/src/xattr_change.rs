//! The change of one extended attribute, as setxattr(2) and removexattr(2) request it.

use steadfs_base::limits::XATTR_SIZE_MAX;

use crate::{FsError, Result, SetXattr};

/// A change of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrChange<'a> {
    /// The attribute's name, with its namespace.
    pub name: &'a [u8],
    /// The new value; `None` removes the attribute.
    pub value: Option<&'a [u8]>,
    /// Whether it must exist, or must not.
    pub how: SetXattr,
}

impl<'a> XattrChange<'a> {
    /// Sets a value.
    ///
    /// # Errors
    /// `TooBig`: no attribute has such a long value.
    pub fn set(name: &'a [u8], value: &'a [u8], how: SetXattr) -> Result<Self> {
        if value.len() > XATTR_SIZE_MAX {
            return Err(FsError::TooBig);
        }
        let value = Some(value);
        Ok(Self { name, value, how })
    }

    /// Removes the attribute, which must exist.
    pub const fn remove(name: &'a [u8]) -> Self {
        Self {
            name,
            value: None,
            how: SetXattr::Replace,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_no_attribute_can_have_is_refused() {
        let value = vec![0; XATTR_SIZE_MAX + 1];
        let set = |len: usize| XattrChange::set(b"user.x", &value[..len], SetXattr::Any);
        assert_eq!(
            set(XATTR_SIZE_MAX).unwrap().value.unwrap().len(),
            XATTR_SIZE_MAX
        );
        assert_eq!(set(XATTR_SIZE_MAX + 1), Err(FsError::TooBig));
    }
}
