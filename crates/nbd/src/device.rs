//! The device.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use steadfs_block::{Bio, Buf, Device, Done, Geometry};
use steadfs_rt::{JoinHandle, Mutex, Rank};

use crate::connection::Connection;
use crate::export::Export;
use crate::job::{Abilities, Job, ZEROS};
use crate::link::{CONNECT_TIME, Link};
use crate::negotiate::negotiate;
use crate::reply::{End, Receiver, Requests};
use crate::table::{Command, Next, Table};
use crate::tls::Tls;
use crate::tunnel::{Tunnel, TunnelEnd};
use crate::wire;
use crate::{NbdError, NbdUri};

/// Unit of sizes, as of image files.
const SECTOR_BYTES: u64 = 512;
/// Largest request of the queue, in bytes.
const MAX_TRANSFER_BYTES: u32 = 1 << 20;
/// Requests in flight at a time.
const DEPTH: usize = 64;
/// The same of background requests.
const BACKGROUND_DEPTH: usize = 16;
/// Connections to a server that allows several.
const CONNECTIONS: usize = 4;

/// How to open an export.
#[derive(Clone, Debug, Default)]
pub struct NbdOptions {
    /// It is only read, by one connection.
    pub read_only: bool,
    /// First byte of the device in the export.
    pub offset: u64,
    /// Largest size of the device.
    pub sizelimit: Option<u64>,
}

/// An export of an NBD server, or a part of it. It has connections for as long as it lives.
pub struct NbdDevice {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    tunnels: Mutex<Tunnels>,
    /// After it was opened for reading only.
    writable: OnceLock<Geometry>,
}

/// The tunnels of encrypted connections.
#[derive(Default)]
struct Tunnels {
    idle: Vec<Tunnel>,
    threads: Vec<(TunnelEnd, JoinHandle<()>)>,
}

struct Shared {
    /// The URI.
    name: PathBuf,
    export: Export,
    geometry: Geometry,
    can: Abilities,
    /// First byte of the device in the export.
    start: u64,
    connections: Vec<Connection>,
    table: Mutex<Table>,
    zeros: OnceLock<Buf>,
    has_tls: bool,
    has_threads: AtomicBool,
    is_closing: AtomicBool,
}

/// The requests of one connection.
struct OfConnection<'a> {
    shared: &'a Shared,
    number: usize,
}

impl NbdDevice {
    /// Connects to the server of an NBD URI and negotiates. No thread is started before [`NbdDevice::start_threads`] or the
    /// first request, and no system call on sockets is made after this returns.
    ///
    /// # Errors
    /// [`NbdError`].
    pub fn open_idle(path: &Path, options: &NbdOptions) -> Result<Self, NbdError> {
        Self::open_within(path, options, CONNECT_TIME)
    }

    pub(crate) fn open_within(
        path: &Path,
        options: &NbdOptions,
        limit: Duration,
    ) -> Result<Self, NbdError> {
        let uri = NbdUri::parse(path)?;
        let tls = uri.tls.as_ref();
        let tls = tls.map(|tls| Tls::new(&uri.endpoint, tls)).transpose()?;
        let mut tunnels = Tunnels::default();
        let mut connect = || -> Result<(Export, Connection), NbdError> {
            let mut link = Link::connect(&uri.endpoint, limit)?;
            let export = negotiate(&mut link, &uri.export, tls.as_ref())?;
            let (socket, tunnel) = link.into_socket()?;
            let connection = Connection::new(socket);
            let connection = connection.map_err(|errno| NbdError::Lost(errno.into()))?;
            tunnels.idle.extend(tunnel);
            Ok((export, connection))
        };
        let (export, first) = connect()?;
        if export.has(wire::READ_ONLY) && !options.read_only {
            return Err(NbdError::ReadOnly);
        }
        let mut connections = vec![first];
        let several = export.has(wire::CAN_MULTI_CONN) && !options.read_only;
        while several && connections.len() < CONNECTIONS {
            // A server may allow fewer.
            match connect() {
                Ok((same, connection)) if same == export => connections.push(connection),
                _ => break,
            }
        }
        let geometry = geometry(&export, options)?;
        let can = Abilities {
            flush: export.has(wire::SEND_FLUSH),
            fua: export.has(wire::SEND_FUA),
            trim: export.has(wire::SEND_TRIM),
            zeroes: export.has(wire::SEND_WRITE_ZEROES),
            payload: export.payload,
        };
        if !can.flush && !options.read_only {
            let name = path.display();
            tracing::warn!(
                "{name}: the NBD server has no FLUSH: what it took is as durable as its own storage makes it"
            );
        }
        Ok(Self {
            shared: Arc::new(Shared {
                name: path.to_owned(),
                geometry,
                can,
                start: options.offset,
                connections,
                table: Mutex::new(Rank::Leaf, Table::default()),
                zeros: OnceLock::new(),
                has_tls: uri.tls.is_some(),
                has_threads: AtomicBool::new(false),
                is_closing: AtomicBool::new(false),
                export,
            }),
            threads: Mutex::new(Rank::DeviceInner, Vec::new()),
            tunnels: Mutex::new(Rank::Leaf, tunnels),
            writable: OnceLock::new(),
        })
    }

    /// Starts the threads of the connections, unless they run.
    ///
    /// # Errors
    /// The host refuses a thread: the device fails every request.
    pub fn start_threads(&self) -> std::io::Result<()> {
        if self.shared.has_threads.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut threads = self.threads.lock();
        if !threads.is_empty() {
            return Ok(());
        }
        let started = self.start_each(&mut threads);
        match &started {
            Ok(()) => self.shared.has_threads.store(true, Ordering::Release),
            Err(error) => self
                .shared
                .lose(&format!("cannot create a thread: {error}")),
        }
        started
    }

    fn start_each(&self, threads: &mut Vec<JoinHandle<()>>) -> std::io::Result<()> {
        let mut tunnels = self.tunnels.lock();
        for tunnel in std::mem::take(&mut tunnels.idle) {
            let end = tunnel.end();
            let thread = steadfs_rt::try_spawn("steadfs-nbd-tls", move || tunnel.run())?;
            tunnels.threads.push((end, thread));
        }
        for number in 0..self.shared.connections.len() {
            let shared = Arc::clone(&self.shared);
            let thread = steadfs_rt::try_spawn("steadfs-nbd", move || shared.receive(number))?;
            threads.push(thread);
        }
        Ok(())
    }

    /// A description of the device.
    pub fn describe(&self) -> String {
        let shared = &self.shared;
        let (name, size) = (shared.name.display(), self.geometry().size);
        let connections = match shared.connections.len() {
            1 => "one connection".to_owned(),
            n => format!("{n} connections"),
        };
        let replies = if shared.export.structured {
            "structured"
        } else {
            "simple"
        };
        let tls = if shared.has_tls { ", TLS" } else { "" };
        let flush = if shared.can.flush { "" } else { ", no FLUSH" };
        let fua = if shared.can.fua { "" } else { ", no FUA" };
        format!(
            "NBD export {name}, {size} bytes from byte {}, {connections}, {replies} replies{tls}{flush}{fua}",
            shared.start
        )
    }
}

fn geometry(export: &Export, options: &NbdOptions) -> Result<Geometry, NbdError> {
    let unit = u64::from(export.block).max(SECTOR_BYTES);
    let end = match options.sizelimit {
        Some(limit) => export.size.min(options.offset.saturating_add(limit)),
        None => export.size,
    };
    let size = end.saturating_sub(options.offset) / unit * unit;
    if size == 0 {
        let (size, offset) = (export.size, options.offset);
        return Err(NbdError::Unusable(format!(
            "has {size} bytes, none after offset {offset}"
        )));
    }
    if !options.offset.is_multiple_of(u64::from(export.block)) {
        let (offset, block) = (options.offset, export.block);
        return Err(NbdError::Unusable(format!(
            "takes requests in units of {block} bytes, and offset {offset} is no multiple"
        )));
    }
    Ok(Geometry {
        size,
        logical_block: export.block,
        read_only: options.read_only,
        discard_granularity: export
            .has(wire::SEND_TRIM)
            .then_some(u64::from(export.block.max(4096))),
        discard_zeroes: false,
        fua: export.has(wire::SEND_FUA),
        max_transfer: export.payload.min(MAX_TRANSFER_BYTES),
    })
}

impl std::fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        if !self.shared.has_threads.load(Ordering::Acquire) {
            for connection in &self.shared.connections {
                connection.disconnect();
            }
        }
        for connection in &self.shared.connections {
            connection.call();
        }
        // A completion may drop the last reference on one of the threads, which then ends by itself.
        if steadfs_rt::task_name() == "steadfs-nbd" {
            return;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            thread.join();
        }
        let tunnels = std::mem::take(&mut *self.tunnels.lock());
        for tunnel in tunnels.idle {
            tunnel.finish();
        }
        for (end, thread) in tunnels.threads {
            end.call();
            thread.join();
        }
    }
}

impl Device for NbdDevice {
    fn geometry(&self) -> &Geometry {
        self.writable.get().unwrap_or(&self.shared.geometry)
    }

    fn start(&self, bio: Bio, done: Done) {
        if let Err(error) = self.geometry().check(&bio) {
            return done(bio, Err(error));
        }
        // Without threads the request fails by what was recorded.
        let _ = self.start_threads();
        let added = self.shared.table.lock().add(bio, done, self.shared.can);
        match added {
            Ok(number) => self.shared.issue(number),
            Err(job) => job.finish(),
        }
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn background_depth(&self) -> usize {
        BACKGROUND_DEPTH
    }

    fn make_writable(&self) -> Result<(), String> {
        if self.shared.export.has(wire::READ_ONLY) {
            return Err(NbdError::ReadOnly.to_string());
        }
        self.writable.get_or_init(|| Geometry {
            read_only: false,
            ..self.shared.geometry.clone()
        });
        Ok(())
    }
}

impl Shared {
    /// Sends the requests of a bio that may be sent now.
    fn issue(&self, number: u64) {
        let zeros = match self.can.zeroes {
            true => None,
            false => Some(self.zeros.get_or_init(|| Buf::zeroed(ZEROS))),
        };
        let place = (self.start, self.connections.len());
        loop {
            let issued = self.table.lock().issue(number, self.can, place, zeros);
            let Some(issued) = issued else { break };
            self.connections[issued.connection].send(issued);
        }
        self.end_stranded();
    }

    /// Ends what a lost connection left between two requests.
    fn end_stranded(&self) {
        let stranded: Vec<Job> = self.table.lock().take_stranded();
        for job in stranded {
            job.finish();
        }
    }

    /// A request has been answered, or will not be.
    fn end(&self, command: Command) {
        let next = self.table.lock().end(command);
        match next {
            Next::Continues(number) => self.issue(number),
            Next::Ended(job) => {
                job.finish();
                if self.is_closing.load(Ordering::SeqCst) {
                    self.call_all();
                }
            }
            Next::Waits => {}
        }
    }

    fn call_all(&self) {
        for connection in &self.connections {
            connection.call();
        }
    }

    /// From now on every request fails.
    fn lose(&self, why: &str) {
        let why = format!("the NBD connection is lost: {why}");
        let is_first = {
            let mut table = self.table.lock();
            let is_first = table.lost().is_none();
            table.lose(&why);
            is_first
        };
        if is_first && !self.is_closing.load(Ordering::SeqCst) {
            let name = self.name.display();
            tracing::error!("{name}: {why}; unmount, and mount again when the server is back");
        }
        self.call_all();
    }

    /// The thread of a connection.
    fn receive(&self, number: usize) {
        let connection = &self.connections[number];
        let requests = OfConnection {
            shared: self,
            number,
        };
        let mut receiver = Receiver::new(connection, &requests);
        let end = loop {
            if let Err(end) = receiver.reply() {
                break end;
            }
        };
        match end {
            End::Closed => connection.disconnect(),
            End::Lost(why) => self.lose(&why),
        }
        connection.close();
        let unanswered = self.table.lock().take_all(number);
        let lost = self.table.lock().lost();
        for mut command in unanswered {
            command.error = lost.clone().or(command.error);
            self.end(command);
        }
        self.end_stranded();
    }
}

impl Requests for OfConnection<'_> {
    fn take(&self, cookie: u64) -> Option<Command> {
        self.shared.table.lock().take(self.number, cookie)
    }

    fn put_back(&self, cookie: u64, command: Command) {
        self.shared.table.lock().put_back(cookie, command);
    }

    fn end(&self, command: Command) {
        self.shared.end(command);
    }

    fn goes_on(&self, within: bool) -> Result<(), End> {
        let table = self.shared.table.lock();
        if let Some(why) = table.lost() {
            return Err(End::Lost(why));
        }
        let is_closing = self.shared.is_closing.load(Ordering::SeqCst);
        match is_closing && !within && table.is_idle() {
            true => Err(End::Closed),
            false => Ok(()),
        }
    }

    fn structured(&self) -> bool {
        self.shared.export.structured
    }
}
