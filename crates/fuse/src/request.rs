//! Requests, decoded: bytes from the kernel become one typed value, or an error.
//!
//! Rule: every length is checked; no input causes a panic.

use std::ffi::CStr;

use thiserror::Error;
use zerocopy::FromBytes;

use crate::open_files::OpenKind;
use crate::wire::{self, InHeader, opcode as op};

/// A request as the transport receives it: header, the operation's structure, and what follows it. `/dev/fuse` delivers
/// the three in one piece, a ring entry in separate buffers.
#[derive(Clone, Copy, Debug)]
pub struct RawRequest<'a> {
    /// The request's header.
    pub header: InHeader,
    /// The operation's structure (the buffer may be longer).
    pub op: &'a [u8],
    /// Names, data, extensions.
    pub payload: &'a [u8],
}

impl<'a> RawRequest<'a> {
    /// Splits a message read from `/dev/fuse`.
    pub fn from_message(message: &'a [u8]) -> Result<Self, DecodeError> {
        let (header, body) = InHeader::read_from_prefix(message).map_err(|_| DecodeError::Short)?;
        if header.len as usize != message.len() {
            return Err(DecodeError::Length);
        }
        // INIT of an old kernel is shorter than ours; an unknown operation is refused later.
        let size = wire::op_size(header.opcode).unwrap_or(0).min(body.len());
        let (op, payload) = body.split_at(size);
        Ok(Self {
            header,
            op,
            payload,
        })
    }
}

/// Why a request cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Shorter than its operation requires.
    #[error("request is too short")]
    Short,
    /// The length in the header differs from the message's.
    #[error("length in the header differs from the message's")]
    Length,
    /// A name without its terminating zero byte.
    #[error("name without terminating zero byte")]
    Name,
    /// The lengths of the extensions at the end are inconsistent.
    #[error("inconsistent extension lengths")]
    Extension,
    /// An unknown operation.
    #[error("unknown operation {0}")]
    Unknown(u32),
}

/// A request's operation. Node ids are the kernel's; file handles are not used.
#[derive(Clone, Copy, Debug)]
#[allow(
    missing_docs,
    reason = "the fields are those of the structures in `wire`"
)]
pub enum Op<'a> {
    Init(wire::InitIn),
    Destroy,
    Interrupt {
        unique: u64,
    },
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget(ForgetList<'a>),
    Getattr,
    Statx,
    Setattr(wire::SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        arg: wire::MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        arg: wire::MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        newdir: u64,
        flags: u32,
        from: &'a [u8],
        to: &'a [u8],
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open(OpenKind),
    Opendir,
    /// The last descriptor of an open file was closed.
    Release {
        fh: u64,
    },
    Releasedir,
    Flush,
    Read(wire::ReadIn),
    Write {
        arg: wire::WriteIn,
        data: &'a [u8],
    },
    Statfs,
    Fsync {
        datasync: bool,
    },
    Setxattr {
        arg: wire::SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Readdir(wire::ReadIn),
    Readdirplus(wire::ReadIn),
    Create,
    Tmpfile(wire::CreateIn),
    Ioctl {
        arg: wire::IoctlIn,
        data: &'a [u8],
    },
    Fallocate(wire::FallocateIn),
    Lseek(wire::LseekIn),
    CopyFileRange {
        arg: wire::CopyFileRangeIn,
        wide: bool,
    },
    Syncfs,
    /// Known, and answered ENOSYS: locks (the kernel then keeps them itself), ACCESS (the kernel checks permissions
    /// itself), BMAP, POLL.
    Unsupported,
}

/// A decoded request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The request's header.
    pub header: InHeader,
    /// The operation with its arguments.
    pub op: Op<'a>,
    /// Supplementary groups that the kernel sends with operations that make an inode.
    pub groups: Groups<'a>,
}

impl<'a> Request<'a> {
    /// Decodes a request.
    pub fn decode(raw: RawRequest<'a>) -> Result<Self, DecodeError> {
        let header = raw.header;
        let ext_len = usize::from(header.total_extlen) * 8;
        let end = raw
            .payload
            .len()
            .checked_sub(ext_len)
            .ok_or(DecodeError::Extension)?;
        let (payload, extensions) = raw.payload.split_at(end);
        let op = decode_op(header.opcode, raw.op, payload)?;
        let groups = Groups::find(extensions)?;
        Ok(Self { header, op, groups })
    }
}

fn decode_op<'a>(opcode: u32, op: &'a [u8], payload: &'a [u8]) -> Result<Op<'a>, DecodeError> {
    let mut names = Names(payload);
    Ok(match opcode {
        op::INIT => Op::Init(decode_init(op)?),
        op::DESTROY => Op::Destroy,
        op::INTERRUPT => Op::Interrupt {
            unique: arg::<wire::InterruptIn>(op)?.unique,
        },
        op::LOOKUP => Op::Lookup {
            name: names.next()?,
        },
        op::FORGET => Op::Forget {
            count: arg::<wire::ForgetIn>(op)?.nlookup,
        },
        op::BATCH_FORGET => Op::BatchForget(ForgetList::new(arg(op)?, payload)?),
        op::GETATTR => {
            arg::<wire::GetattrIn>(op)?;
            Op::Getattr
        }
        op::STATX => {
            arg::<wire::StatxIn>(op)?;
            Op::Statx
        }
        op::SETATTR => Op::Setattr(arg(op)?),
        op::READ => Op::Read(arg(op)?),
        op::WRITE => decode_write(arg(op)?, payload)?,
        op::READDIR => Op::Readdir(arg(op)?),
        op::READDIRPLUS => Op::Readdirplus(arg(op)?),
        op::OPEN => Op::Open(OpenKind::of_flags(arg::<wire::OpenIn>(op)?.flags)),
        op::OPENDIR => Op::Opendir,
        op::RELEASE => Op::Release {
            fh: arg::<wire::ReleaseIn>(op)?.fh,
        },
        op::RELEASEDIR => Op::Releasedir,
        op::FLUSH => Op::Flush,
        op::FSYNC | op::FSYNCDIR => Op::Fsync {
            datasync: arg::<wire::FsyncIn>(op)?.fsync_flags & wire::FSYNC_FDATASYNC != 0,
        },
        op::STATFS => Op::Statfs,
        op::SYNCFS => Op::Syncfs,
        op::IOCTL => decode_ioctl(arg(op)?, payload)?,
        op::FALLOCATE => Op::Fallocate(arg(op)?),
        op::LSEEK => Op::Lseek(arg(op)?),
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => Op::CopyFileRange {
            arg: arg(op)?,
            wide: opcode == op::COPY_FILE_RANGE_64,
        },
        op::GETXATTR => Op::Getxattr {
            size: arg::<wire::GetxattrIn>(op)?.size,
            name: names.next()?,
        },
        op::LISTXATTR => Op::Listxattr {
            size: arg::<wire::GetxattrIn>(op)?.size,
        },
        op::REMOVEXATTR => Op::Removexattr {
            name: names.next()?,
        },
        op::SETXATTR => decode_setxattr(arg(op)?, payload)?,
        op::GETLK | op::SETLK | op::SETLKW | op::ACCESS | op::BMAP | op::POLL => Op::Unsupported,
        _ => return decode_namespace(opcode, op, names),
    })
}

/// Operations that change names.
fn decode_namespace<'a>(
    opcode: u32,
    op: &'a [u8],
    mut names: Names<'a>,
) -> Result<Op<'a>, DecodeError> {
    Ok(match opcode {
        op::READLINK => Op::Readlink,
        op::SYMLINK => Op::Symlink {
            name: names.next()?,
            target: names.next()?,
        },
        op::MKNOD => Op::Mknod {
            arg: arg(op)?,
            name: names.next()?,
        },
        op::MKDIR => Op::Mkdir {
            arg: arg(op)?,
            name: names.next()?,
        },
        op::CREATE => Op::Create,
        // The name that follows is empty or "/"; it has no meaning.
        op::TMPFILE => Op::Tmpfile(arg(op)?),
        op::UNLINK => Op::Unlink {
            name: names.next()?,
        },
        op::RMDIR => Op::Rmdir {
            name: names.next()?,
        },
        op::RENAME => Op::Rename {
            newdir: arg::<wire::RenameIn>(op)?.newdir,
            flags: 0,
            from: names.next()?,
            to: names.next()?,
        },
        op::RENAME2 => {
            let arg: wire::Rename2In = arg(op)?;
            Op::Rename {
                newdir: arg.newdir,
                flags: arg.flags,
                from: names.next()?,
                to: names.next()?,
            }
        }
        op::LINK => Op::Link {
            node: arg::<wire::LinkIn>(op)?.oldnodeid,
            name: names.next()?,
        },
        other => return Err(DecodeError::Unknown(other)),
    })
}

fn arg<T: FromBytes>(op: &[u8]) -> Result<T, DecodeError> {
    T::read_from_prefix(op)
        .map(|(value, _)| value)
        .map_err(|_| DecodeError::Short)
}

/// INIT has grown: fields that an old kernel does not send are zero.
fn decode_init(op: &[u8]) -> Result<wire::InitIn, DecodeError> {
    const FIRST_FORM: usize = 16;
    let mut bytes = [0; size_of::<wire::InitIn>()];
    let len = op.len().min(bytes.len());
    if len < FIRST_FORM {
        return Err(DecodeError::Short);
    }
    bytes[..len].copy_from_slice(&op[..len]);
    arg(&bytes)
}

fn decode_write(arg: wire::WriteIn, payload: &[u8]) -> Result<Op<'_>, DecodeError> {
    let data = payload.get(..arg.size as usize).ok_or(DecodeError::Short)?;
    Ok(Op::Write { arg, data })
}

fn decode_setxattr(arg: wire::SetxattrIn, payload: &[u8]) -> Result<Op<'_>, DecodeError> {
    let mut names = Names(payload);
    let name = names.next()?;
    let value = names.0.get(..arg.size as usize).ok_or(DecodeError::Short)?;
    Ok(Op::Setxattr { arg, name, value })
}

fn decode_ioctl(arg: wire::IoctlIn, payload: &[u8]) -> Result<Op<'_>, DecodeError> {
    let data = payload
        .get(..arg.in_size as usize)
        .ok_or(DecodeError::Short)?;
    Ok(Op::Ioctl { arg, data })
}

/// Zero-terminated names, one after the other.
struct Names<'a>(&'a [u8]);

impl<'a> Names<'a> {
    fn next(&mut self) -> Result<&'a [u8], DecodeError> {
        let name = CStr::from_bytes_until_nul(self.0)
            .map_err(|_| DecodeError::Name)?
            .to_bytes();
        self.0 = &self.0[name.len() + 1..];
        Ok(name)
    }
}

/// The nodes of a BATCH_FORGET.
#[derive(Clone, Copy, Debug)]
pub struct ForgetList<'a>(&'a [u8]);

impl<'a> ForgetList<'a> {
    fn new(arg: wire::BatchForgetIn, payload: &'a [u8]) -> Result<Self, DecodeError> {
        let len = (arg.count as usize)
            .checked_mul(size_of::<wire::ForgetOne>())
            .ok_or(DecodeError::Short)?;
        Ok(Self(payload.get(..len).ok_or(DecodeError::Short)?))
    }

    /// Node ids and the counts to take from each.
    pub fn iter(self) -> impl Iterator<Item = wire::ForgetOne> + 'a {
        self.0
            .chunks_exact(size_of::<wire::ForgetOne>())
            .filter_map(|one| wire::ForgetOne::read_from_bytes(one).ok())
    }
}

/// Supplementary groups of the caller, as far as the kernel sends them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups<'a>(&'a [u8]);

impl<'a> Groups<'a> {
    fn find(mut extensions: &'a [u8]) -> Result<Self, DecodeError> {
        while !extensions.is_empty() {
            let (head, _) = wire::ExtHeader::read_from_prefix(extensions)
                .map_err(|_| DecodeError::Extension)?;
            let size = head.size as usize;
            let body = extensions
                .get(size_of::<wire::ExtHeader>()..size)
                .ok_or(DecodeError::Extension)?;
            if head.kind == wire::EXT_GROUPS {
                let (count, list) =
                    u32::read_from_prefix(body).map_err(|_| DecodeError::Extension)?;
                let len = (count as usize)
                    .checked_mul(4)
                    .ok_or(DecodeError::Extension)?;
                return Ok(Self(list.get(..len).ok_or(DecodeError::Extension)?));
            }
            extensions = extensions
                .get(wire::padded(size)..)
                .ok_or(DecodeError::Extension)?;
        }
        Ok(Self::default())
    }

    /// Group ids.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        self.0
            .chunks_exact(4)
            .filter_map(|id| u32::read_from_bytes(id).ok())
    }
}

#[cfg(test)]
mod tests;
