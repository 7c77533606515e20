//! What a server says about an export, checked.

use crate::NbdError;
use crate::wire;

/// Most bytes of data of one request.
pub const PAYLOAD_MAX: u32 = 32 << 20;
/// Bytes of data that a server without a stated limit takes.
const PAYLOAD_UNSTATED: u32 = 32 << 20;
/// Unit of offsets and lengths of an export without a stated one.
const BLOCK_UNSTATED: u32 = 512;
/// Largest unit that the layers above use.
const BLOCK_MAX: u32 = 4096;

/// An export whose negotiation has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// `SEND_FLUSH` and the other flags.
    pub flags: u16,
    /// Unit of offsets and lengths: 512 to 4096, a power of two.
    pub block: u32,
    /// Most bytes of data of one request, a multiple of `block`.
    pub payload: u32,
    /// Whether reads are answered by structured replies.
    pub structured: bool,
}

/// Block sizes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    pub minimum: u32,
    pub maximum: u32,
}

impl Export {
    /// Checks what a server says.
    pub fn new(
        (size, flags): (u64, u16),
        sizes: Option<BlockSizes>,
        structured: bool,
    ) -> Result<Self, NbdError> {
        let (block, payload) = match sizes {
            None => (BLOCK_UNSTATED, PAYLOAD_UNSTATED),
            Some(BlockSizes { minimum, maximum }) => {
                if !minimum.is_power_of_two() || maximum < minimum {
                    let what = format!("block sizes {minimum} to {maximum}");
                    return Err(NbdError::Protocol(what));
                }
                if minimum > BLOCK_MAX {
                    return Err(NbdError::Unusable(format!(
                        "takes requests in units of {minimum} bytes only; steadfs needs at most {BLOCK_MAX} \
                         (nbdkit --filter=blocksize, or qemu-nbd, serves it in smaller ones)"
                    )));
                }
                (minimum.max(BLOCK_UNSTATED), maximum)
            }
        };
        let payload = payload.min(PAYLOAD_MAX) / block * block;
        if payload < BLOCK_MAX {
            return Err(NbdError::Unusable(format!(
                "takes requests of at most {payload} bytes; steadfs needs {BLOCK_MAX}"
            )));
        }
        if size > i64::MAX as u64 {
            return Err(NbdError::Protocol(format!("an export of {size} bytes")));
        }
        if flags & wire::HAS_FLAGS == 0 && flags != 0 {
            return Err(NbdError::Protocol(format!("flags {flags:#x}")));
        }
        Ok(Self {
            size,
            flags,
            block,
            payload,
            structured,
        })
    }

    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(minimum: u32, maximum: u32) -> Result<(u32, u32), String> {
        let sizes = Some(BlockSizes { minimum, maximum });
        Export::new((1 << 20, 1), sizes, true)
            .map(|export| (export.block, export.payload))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn block_sizes_bound_requests() {
        assert_eq!(with(1, u32::MAX), Ok((512, PAYLOAD_MAX)));
        assert_eq!(with(512, 65536), Ok((512, 65536)));
        assert_eq!(with(4096, 40000), Ok((4096, 36864)));
        for (minimum, maximum, why) in [
            (0, 1, "protocol"),
            (3, 4096, "protocol"),
            (4096, 512, "protocol"),
            (8192, u32::MAX, "units of 8192"),
            (512, 2048, "at most 2048"),
        ] {
            let error = with(minimum, maximum).unwrap_err();
            assert!(error.contains(why), "{minimum} {maximum}: {error}");
        }
        let unstated = Export::new((512, 0), None, false).unwrap();
        assert_eq!((unstated.block, unstated.payload), (512, PAYLOAD_UNSTATED));
        assert!(Export::new((u64::MAX, 1), None, false).is_err());
        assert!(Export::new((512, 2), None, false).is_err());
    }
}
