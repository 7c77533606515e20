//! A device on an export of an NBD server (Network Block Device).
//!
//! **Problem.** A volume may be on a disk that another program serves: a Ceph RBD image, a qcow2 file, a disk of another
//! host. The server is trusted as little as a volume, and the process that parses a volume has no network.
//!
//! **Rule.** Connections are made and negotiated before a process gives up its rights ([`NbdDevice::open_idle`]). From then
//! on they are used by read(2), write(2), writev(2) and poll(2) only. Everything a server sends is bounded and checked: a reply that
//! breaks the protocol ends the connection. A lost connection is never made again, because a request that the server still
//! has could overtake a later one: all requests in flight and all later ones fail, FLUSHes among them, so the volume stops.
//!
//! **Numbers.** Making a connection, with the negotiation, takes at most 10 s. A request moves at most 32 MiB, or what the
//! server allows. A server that does not answer is like a disk that does not answer, except that TCP notices a dead host
//! after 60 s.
//!
//! TLS (`nbds`) is rustls's. A thread of each connection encrypts (`tunnel`). Certificates are read before the negotiation, and
//! the client's key stays in memory as long as the device.
//!
//! The protocol is the fixed newstyle of the NBD project's `doc/proto.md`, with structured replies where they are offered.

#![forbid(unsafe_code)]

mod connection;
mod device;
mod error;
mod export;
mod job;
mod link;
mod negotiate;
mod reply;
mod table;
mod tls;
mod tunnel;
mod uri;
mod wire;

#[cfg(test)]
mod tests;

pub use device::{NbdDevice, NbdOptions};
pub use error::NbdError;
pub use tls::TlsOptions;
pub use uri::{Endpoint, NbdUri, is_uri};
