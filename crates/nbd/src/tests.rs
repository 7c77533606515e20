//! A server in this process that answers as each test says, and a real one.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, Device, Queue, QueueOptions};
use steadfs_rt::JoinHandle;

use crate::wire::{self, Kind};
use crate::{NbdDevice, NbdError, NbdOptions};

mod hostile;
mod negotiation;
mod requests;
mod tls;

/// Size of the export of a fake server.
const SIZE: u64 = 1 << 20;
const FLAGS: u16 = wire::HAS_FLAGS | wire::SEND_FLUSH | wire::SEND_FUA;

/// A listening fake server.
struct Fake {
    uri: PathBuf,
    _dir: tempfile::TempDir,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Runs `serve` on the first connection. That it ends early, because the client does, is no failure.
    fn start(serve: impl FnOnce(&mut Peer) -> std::io::Result<()> + Send + 'static) -> Self {
        Self::start_many(vec![Box::new(serve)])
    }

    /// The same for several connections, one after the other.
    fn start_many(serve: Vec<Serve>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nbd");
        let listener = UnixListener::bind(&socket).unwrap();
        let thread = steadfs_rt::spawn("fake", move || {
            for serve in serve {
                let (stream, _) = listener.accept().unwrap();
                let _ = serve(&mut Peer(stream));
            }
        });
        Self {
            uri: PathBuf::from(format!("nbd+unix:///disk?socket={}", socket.display())),
            _dir: dir,
            thread: Some(thread),
        }
    }

    fn open(&self) -> Result<NbdDevice, NbdError> {
        NbdDevice::open_within(&self.uri, &NbdOptions::default(), Duration::from_secs(2))
    }

    fn queue(&self) -> Queue {
        Queue::new(Arc::new(self.open().unwrap()), QueueOptions::default())
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join();
        }
    }
}

type Serve = Box<dyn FnOnce(&mut Peer) -> std::io::Result<()> + Send>;

/// The server's end of a connection.
struct Peer(UnixStream);

/// A request that the server has received.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Request {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u32,
    data: Vec<u8>,
}

impl Peer {
    fn get<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn put(&mut self, parts: &[&[u8]]) -> std::io::Result<()> {
        self.0.write_all(&parts.concat())
    }

    fn greet(&mut self) -> std::io::Result<()> {
        let flags = wire::FIXED_NEWSTYLE | wire::NO_ZEROES;
        self.put(&[
            &wire::MAGIC.to_be_bytes(),
            &wire::OPTION_MAGIC.to_be_bytes(),
            &flags.to_be_bytes(),
        ])?;
        assert_eq!(u32::from_be_bytes(self.get()?), u32::from(flags));
        Ok(())
    }

    fn option(&mut self) -> std::io::Result<(u32, Vec<u8>)> {
        assert_eq!(u64::from_be_bytes(self.get()?), wire::OPTION_MAGIC);
        let number = u32::from_be_bytes(self.get()?);
        let mut data = vec![0; u32::from_be_bytes(self.get()?) as usize];
        self.0.read_exact(&mut data)?;
        Ok((number, data))
    }

    fn answer(&mut self, option: u32, kind: u32, data: &[u8]) -> std::io::Result<()> {
        self.put(&[
            &wire::OPTION_REPLY_MAGIC.to_be_bytes(),
            &option.to_be_bytes(),
            &kind.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
            data,
        ])
    }

    fn export_info(&mut self, size: u64, flags: u16) -> std::io::Result<()> {
        let info = [
            &wire::INFO_EXPORT.to_be_bytes()[..],
            &size.to_be_bytes(),
            &flags.to_be_bytes(),
        ];
        self.answer(wire::OPT_GO, wire::REP_INFO, &info.concat())
    }

    /// Negotiates as a server with these flags, with or without structured replies.
    fn negotiate(&mut self, flags: u16, structured: bool) -> std::io::Result<()> {
        self.greet()?;
        assert_eq!(self.option()?.0, wire::OPT_STRUCTURED_REPLY);
        let kind = if structured {
            wire::REP_ACK
        } else {
            wire::REP_ERR_UNSUP
        };
        self.answer(wire::OPT_STRUCTURED_REPLY, kind, &[])?;
        let (option, data) = self.option()?;
        assert_eq!((option, &data[4..8]), (wire::OPT_GO, &b"disk"[..]));
        self.export_info(SIZE, flags)?;
        self.answer(wire::OPT_GO, wire::REP_ACK, &[])
    }

    fn request(&mut self) -> std::io::Result<Request> {
        assert_eq!(u32::from_be_bytes(self.get()?), wire::REQUEST_MAGIC);
        let mut request = Request {
            flags: u16::from_be_bytes(self.get()?),
            kind: u16::from_be_bytes(self.get()?),
            cookie: u64::from_be_bytes(self.get()?),
            offset: u64::from_be_bytes(self.get()?),
            len: u32::from_be_bytes(self.get()?),
            data: Vec::new(),
        };
        if request.kind == Kind::Write as u16 {
            request.data = vec![0; request.len as usize];
            self.0.read_exact(&mut request.data)?;
        }
        Ok(request)
    }

    fn simple(&mut self, cookie: u64, error: u32, data: &[u8]) -> std::io::Result<()> {
        self.put(&[
            &wire::SIMPLE_REPLY_MAGIC.to_be_bytes(),
            &error.to_be_bytes(),
            &cookie.to_be_bytes(),
            data,
        ])
    }

    fn chunk(
        &mut self,
        cookie: u64,
        (flags, kind): (u16, u16),
        parts: &[&[u8]],
    ) -> std::io::Result<()> {
        let data = parts.concat();
        self.put(&[
            &wire::STRUCTURED_REPLY_MAGIC.to_be_bytes(),
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &cookie.to_be_bytes(),
            &(data.len() as u32).to_be_bytes(),
            &data,
        ])
    }

    /// Until the client ends the connection.
    fn rest(&mut self) -> std::io::Result<Vec<Request>> {
        let mut requests = Vec::new();
        loop {
            let request = self.request()?;
            if request.kind == Kind::Disconnect as u16 {
                return Ok(requests);
            }
            self.simple(request.cookie, 0, &[])?;
            requests.push(request);
        }
    }
}

fn read(queue: &Queue, offset: u64, len: usize) -> Result<Buf, String> {
    queue
        .read(offset, len, IoTag::default())
        .map_err(|error| error.to_string())
}

fn write(queue: &Queue, bio: Bio) -> Result<(), String> {
    queue
        .submit(bio, IoTag::default())
        .wait()
        .map(drop)
        .map_err(|error| error.to_string())
}

fn flush(queue: &Queue) -> Result<(), String> {
    write(queue, Bio::flush())
}
