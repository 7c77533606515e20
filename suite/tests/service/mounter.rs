//! A mounter of libfuse's service protocol, written from the protocol (include/fuse_service_priv.h at e8d407ce) and what
//! fuservicemount3(8) does with it.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// May mount for other users, and `fuseblk`: what root's mounter says.
pub const ROOT: u32 = 3;
/// An ordinary user's without `user_allow_other`.
pub const USER: u32 = 0;

/// Connects to a service.
pub fn connect(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

pub fn send(socket: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let message = [IoSlice::new(message)];
    // A server that has ended is found by the next receive.
    let _ = rustix::net::sendmsg(socket, &message, &mut control, SendFlags::NOSIGNAL);
}

/// The next message; empty at the end.
pub fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 65_536];
    let mut control = rustix::net::RecvAncillaryBuffer::default();
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::empty(),
    );
    bytes.truncate(received.map_or(0, |received| received.bytes));
    bytes
}

/// The next message, if there is one already.
pub fn receive_now(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 65_536];
    match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN) => None,
        received => {
            bytes.truncate(received.unwrap().1);
            Some(bytes)
        }
    }
}

/// A request to open a file.
pub fn opening(path: &Path, flags: OFlags) -> Vec<u8> {
    let flags = flags.bits().to_be_bytes();
    let path = path.to_str().unwrap().as_bytes();
    [b"OPEN", &flags[..], &[0; 12], path, &[0]].concat()
}

/// Opens files until another request comes, which is returned.
pub fn open_files(socket: &OwnedFd) -> Vec<u8> {
    loop {
        let message = receive(socket);
        match message.get(..4) {
            Some(b"OPEN" | b"BDEV") => open_for(socket, &message, &mut Mounted::default()),
            _ => return message,
        }
    }
}

fn word(message: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(message[at..at + 4].try_into().unwrap())
}

/// The text that ends a message, without its zero byte.
fn text(message: &[u8], at: usize) -> String {
    let (end, text) = message[at..].split_last().unwrap();
    assert_eq!(*end, 0);
    String::from_utf8(text.to_vec()).unwrap()
}

/// The file with the arguments.
fn arguments(words: &[&str]) -> OwnedFd {
    let mut head = [
        b"ARGS".to_vec(),
        (words.len() as u32).to_be_bytes().to_vec(),
    ]
    .concat();
    let mut strings = Vec::new();
    for word in words {
        let at = (8 + 8 * words.len() + strings.len()) as u32;
        head.extend(at.to_be_bytes());
        head.extend((word.len() as u32 + 1).to_be_bytes());
        strings.extend(word.bytes().chain([0]));
    }
    let mut file = File::from(memfd_create("arguments", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(&[head, strings].concat()).unwrap();
    file.into()
}

/// Greets, and sends what a service gets unasked; returns the device.
pub fn greet(socket: &OwnedFd, flags: u32, words: &[&str]) -> OwnedFd {
    let hello = [&b"SAFT\0\x01\0\x01"[..], &flags.to_be_bytes()].concat();
    send(socket, &hello, &[]);
    assert_eq!(receive(socket), b"LAST\0\x01\0\0");
    let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let words = [&["steadfs"], words].concat();
    send(socket, b"FILE\0\0\0\0argv\0", &[arguments(&words).as_fd()]);
    send(socket, b"FILE\0\0\0\0fusedev\0", &[device.as_fd()]);
    device
}

/// What a service has asked for.
#[derive(Debug, Default)]
pub struct Mounted {
    /// The exit code; `None` if the service ended without one.
    pub code: Option<u32>,
    /// The files that could not be opened.
    pub refused: Vec<String>,
    fuseblk: bool,
    source: String,
    mountpoint: PathBuf,
    /// Options for FUSE.
    pub options: String,
}

/// Mounts as fuservicemount3(8) does with these words on its command line.
pub fn mount(service: &Path, flags: u32, words: &[&str]) -> Mounted {
    let socket = connect(service);
    let device = greet(&socket, flags, words);
    let mut mounted = Mounted::default();
    loop {
        let message = receive(&socket);
        if message.is_empty() {
            return mounted;
        }
        let done = match &message[..4] {
            b"OPEN" | b"BDEV" => {
                open_for(&socket, &message, &mut mounted);
                continue;
            }
            b"BYEE" => {
                mounted.code = Some(word(&message, 4));
                return mounted;
            }
            b"TYPE" => {
                mounted.fuseblk = word(&message, 4) == 1;
                let allowed = !mounted.fuseblk || flags & 2 != 0;
                allowed.then_some(()).ok_or(Errno::PERM)
            }
            b"NAME" => {
                mounted.source = text(&message, 4);
                Ok(())
            }
            b"MNTP" => {
                assert_eq!(word(&message, 4) >> 16, 0o040_000);
                let path = text(&message, 8);
                assert!(words.contains(&&*path));
                mounted.mountpoint = path.into();
                let is_folder = mounted.mountpoint.is_dir();
                is_folder.then_some(()).ok_or(Errno::NOTDIR)
            }
            b"OPTS" => {
                mounted.options = text(&message, 4);
                Ok(())
            }
            b"DOIT" => make(&mounted, &device, word(&message, 4)),
            other => panic!("{other:?}"),
        };
        let errno = done.err().map_or(0, |errno| errno.raw_os_error() as u32);
        let reply = [&b"REPL"[..], &errno.to_be_bytes()].concat();
        send(&socket, &reply, &[]);
    }
}

fn open_for(socket: &OwnedFd, message: &[u8], mounted: &mut Mounted) {
    let path = text(message, 20);
    let flags = OFlags::from_bits_retain(word(message, 4)) | OFlags::CLOEXEC;
    let opened = open(&*path, flags, Mode::empty()).and_then(|fd| {
        let file = File::from(fd);
        let is_device = file
            .metadata()
            .is_ok_and(|found| found.file_type().is_block_device());
        let suits = is_device || &message[..4] == b"OPEN";
        suits.then_some(file).ok_or(Errno::NOTBLK)
    });
    let errno = opened
        .as_ref()
        .err()
        .map_or(0, |errno| errno.raw_os_error() as u32);
    let reply = [&b"FILE"[..], &errno.to_be_bytes(), path.as_bytes(), &[0]].concat();
    match opened {
        Ok(file) => send(socket, &reply, &[file.as_fd()]),
        Err(_) => {
            mounted.refused.push(path);
            send(socket, &reply, &[]);
        }
    }
}

fn make(mounted: &Mounted, device: &OwnedFd, flags: u32) -> Result<(), Errno> {
    let kind = match mounted.fuseblk {
        true => "fuseblk.steadfs",
        false => "fuse.steadfs",
    };
    let data = format!(
        "{},fd={},rootmode=40000,user_id=0,group_id=0",
        mounted.options,
        device.as_raw_fd()
    );
    let data = std::ffi::CString::new(data).unwrap();
    let flags = MountFlags::from_bits_retain(flags.into());
    rustix::mount::mount(&*mounted.source, &mounted.mountpoint, kind, flags, &*data)
}
