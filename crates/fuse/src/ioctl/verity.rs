//! The ioctls of verity files.
//!
//! `struct fsverity_enable_arg` has pointers to a salt and a signature. Since Linux 6.10 the kernel appends both to the
//! structure; an older one passes the structure alone, and the file can be sealed by our own command.

use rustix::io::Errno;
use steadfs_vfs::acl::Acl;
use steadfs_vfs::verity::{SALT_MAX, SIGNATURE_MAX, VerityOptions};
use steadfs_vfs::{FileKind, FsError};
use zerocopy::FromBytes;

use super::reply;
use crate::call::{Call, Outcome};
use crate::reply::ReplyBuf;
use crate::wire;

/// `struct fsverity_digest`: algorithm, digest size (in the request: size of the caller's buffer), digest. The kernel
/// copies as many bytes as the caller's buffer holds, since Linux 6.10.
pub(super) fn measure(
    call: &Call<'_>,
    arg: &wire::IoctlIn,
    data: &[u8],
    out: &mut ReplyBuf,
) -> Outcome {
    let ([_, room], _) = <[u16; 2]>::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
    let digest = call.volume.fs.verity_digest(&call.cx, call.ino)?;
    let size = u16::try_from(digest.bytes.len()).map_err(|_| Errno::OVERFLOW)?;
    if room < size {
        return Err(Errno::OVERFLOW.into());
    }
    let head = [digest.algorithm, size].map(u16::to_ne_bytes).concat();
    reply(out, arg, &[head, digest.bytes].concat())
}

/// FS_IOC_ENABLE_VERITY.
pub(super) fn enable(call: &Call<'_>, data: &[u8]) -> Outcome {
    let (arg, rest) = wire::FsverityEnableArg::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
    let reserved = arg.reserved1 != 0 || arg.reserved2 != [0; 11];
    if arg.version != 1 || reserved || !arg.block_size.is_power_of_two() {
        return Err(Errno::INVAL.into());
    }
    let (salt_len, signature_len) = (arg.salt_size as usize, arg.sig_size as usize);
    if salt_len > SALT_MAX || signature_len > SIGNATURE_MAX {
        return Err(Errno::MSGSIZE.into());
    }
    if signature_len > 0 {
        return Err(FsError::NotSupported(
            "a signature of a verity file (only the kernel's keyring could verify it; compare the file's digest instead)",
        )
        .into());
    }
    let Some(salt) = rest.get(..salt_len) else {
        return Err(FsError::NotSupported(
            "a salt, which this kernel does not pass on (steadfs verity enable does)",
        )
        .into());
    };
    let options = VerityOptions {
        algorithm: arg.hash_algorithm,
        block_size: arg.block_size,
        salt: salt.to_vec(),
    };
    Ok(seal(call, &options)?)
}

/// Our own command, with a reason where it fails: the same by a line of options, or without one the digest.
pub(super) fn command(call: &Call<'_>, line: &str) -> steadfs_vfs::Result<String> {
    if line.is_empty() {
        let digest = call.volume.fs.verity_digest(&call.cx, call.ino)?;
        return Ok(digest.to_string());
    }
    let options = VerityOptions::parse(line)?;
    seal(call, &options).map(|()| String::new())
}

fn seal(call: &Call<'_>, options: &VerityOptions) -> steadfs_vfs::Result<()> {
    let (volume, ino) = (call.volume, call.ino);
    let fs = &*volume.fs;
    check_may_write(call)?;
    let _denied = volume.writers.deny(ino).map_err(|error| match error {
        // Where the volume or the file would be refused in any case, that is the answer.
        FsError::InUse(_) => match fs.verity_digest(&call.cx, ino) {
            Ok(_) => FsError::Exists,
            Err(FsError::NoData) => error,
            Err(why) => why,
        },
        error => error,
    })?;
    let sealed = fs.enable_verity(&call.cx, ino, options);
    // Pages from before were not verified; after an error the file may be sealed nevertheless.
    volume.attributes_changed(ino);
    let _ = volume.content_dropped(ino);
    sealed
}

/// The kernel requires write permission, although the file is open for reading only.
fn check_may_write(call: &Call<'_>) -> steadfs_vfs::Result<()> {
    const ACL: &[u8] = b"system.posix_acl_access";
    let (fs, cx) = (&*call.volume.fs, &call.cx);
    let attr = fs.getattr(cx, call.ino)?;
    if cx.uid != 0 {
        let list = match attr.kind {
            FileKind::Regular | FileKind::Directory => fs.getxattr(cx, call.ino, ACL).ok(),
            _ => None,
        };
        let list = list.and_then(|list| Acl::from_xattr(&list).ok());
        let list = list.unwrap_or_else(|| Acl::of_mode(attr.perm));
        if !list.may_write(cx, (attr.uid, attr.gid)) {
            return Err(FsError::Access);
        }
    }
    match attr.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(FsError::IsDir),
        _ => Err(FsError::Invalid("not a regular file")),
    }
}
