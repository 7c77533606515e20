//! Numbers of the protocol, and its fixed-size messages. All integers are big-endian.

/// First eight bytes of a server.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of a newstyle server, and first ones of each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Second eight bytes of an oldstyle server.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// First eight bytes of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Flags of the handshake, the same for server and client.
pub const FIXED_NEWSTYLE: u16 = 1;
pub const NO_ZEROES: u16 = 2;

/// Options.
pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;

/// Types of replies to options.
pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
pub const REP_ERR_UNSUP: u32 = REP_ERROR + 1;
pub const REP_ERR_POLICY: u32 = REP_ERROR + 2;
pub const REP_ERR_INVALID: u32 = REP_ERROR + 3;
pub const REP_ERR_PLATFORM: u32 = REP_ERROR + 4;
pub const REP_ERR_TLS_REQD: u32 = REP_ERROR + 5;
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR + 6;
pub const REP_ERR_SHUTDOWN: u32 = REP_ERROR + 7;
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR + 8;

pub fn is_error_reply(kind: u32) -> bool {
    kind & REP_ERROR != 0
}

/// Types of information about an export.
pub const INFO_EXPORT: u16 = 0;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export.
pub const HAS_FLAGS: u16 = 1;
pub const READ_ONLY: u16 = 1 << 1;
pub const SEND_FLUSH: u16 = 1 << 2;
pub const SEND_FUA: u16 = 1 << 3;
pub const SEND_TRIM: u16 = 1 << 5;
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub const CAN_MULTI_CONN: u16 = 1 << 8;

/// Flag of a request: durable when it is answered.
pub const FLAG_FUA: u16 = 1;

/// Flag of a structured reply: the last chunk.
pub const REPLY_DONE: u16 = 1;
/// Types of chunks.
pub const CHUNK_NONE: u16 = 0;
pub const CHUNK_DATA: u16 = 1;
pub const CHUNK_HOLE: u16 = 2;
pub const CHUNK_ERROR_BIT: u16 = 1 << 15;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// Length of a request's header in bytes.
pub const REQUEST_LEN: usize = 28;

/// The header of a request.
pub fn request(kind: Kind, flags: u16, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&(kind as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// An option of the client.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Reads integers one after the other; `None` at the end of the bytes.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    pub fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    pub fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// The name of an error number of the protocol.
pub fn error_name(error: u32) -> String {
    let name = match error {
        1 => "not permitted (EPERM)",
        5 => "an I/O error (EIO)",
        12 => "no memory (ENOMEM)",
        22 => "an invalid request (EINVAL)",
        28 => "no space (ENOSPC)",
        75 => "too large (EOVERFLOW)",
        95 => "not supported (ENOTSUP)",
        108 => "a shutdown (ESHUTDOWN)",
        other => return format!("error {other}"),
    };
    name.to_owned()
}
