//! The process of a service that reads the volume.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::broker::BrokerClient;
use crate::error::MountError;
use crate::host::{self, Answer, Host, Question};
use crate::mount::{MountOptions, Mounter};

/// The owner of a mount by another user than root: the protocol does not send its number. Linux's overflow id.
const UNKNOWN_ID: u32 = 65_534;

const NO_ADMINISTRATION: &str = "the server of this mount is a service, which knows no rights of its callers: unmount, \
    and mount again with other options (steadfs mount makes mounts whose options can be changed)";
const NO_SUCCESSOR: &str =
    "the server of this mount is a service, which starts no other server: unmount, and mount again";

/// The connection of a server to its broker, which is a service.
pub struct ServiceClient {
    broker: Arc<BrokerClient>,
    is_roots: bool,
}

impl ServiceClient {
    /// Connects this process. Call it once, before anything is mounted. `is_roots`: root uses the mounter.
    pub fn connect(socket: OwnedFd, is_roots: bool) -> Arc<Self> {
        let client = Arc::new(Self {
            broker: Arc::new(BrokerClient::new(socket)),
            is_roots,
        });
        host::set_host(Arc::clone(&client) as Arc<dyn Host>);
        client
    }

    /// The connection.
    pub fn broker(&self) -> &Arc<BrokerClient> {
        &self.broker
    }
}

impl Host for ServiceClient {
    fn ask(&self, _: Question) -> Answer {
        // The broker does not know either.
        Answer::Unknown
    }

    fn fuse_device(&self) -> io::Result<OwnedFd> {
        self.broker.fuse_device()
    }

    fn close_result(&self) -> io::Result<(OwnedFd, i32, i32)> {
        self.broker.close_result()
    }

    fn set_standby(&self, _: &str) {}

    fn record_file(&self) -> io::Result<OwnedFd> {
        Err(io::Error::other(NO_SUCCESSOR))
    }

    fn upgrade(&self) -> Result<u32, String> {
        Err(NO_SUCCESSOR.to_owned())
    }

    fn has_successor(&self, _: u32) -> Result<bool, String> {
        Err(NO_SUCCESSOR.to_owned())
    }

    fn no_administration(&self) -> Option<&'static str> {
        Some(NO_ADMINISTRATION)
    }
}

impl Mounter for ServiceClient {
    fn mount(&self, options: &MountOptions) -> Result<OwnedFd, MountError> {
        self.broker.mount(options)
    }

    fn spare(&self) -> Result<Vec<File>, MountError> {
        self.broker.spare()
    }

    fn detach(&self) -> bool {
        self.broker.detach();
        // Nor can the broker.
        false
    }

    fn owner(&self) -> (u32, u32) {
        match self.is_roots {
            true => (0, 0),
            false => (UNKNOWN_ID, UNKNOWN_ID),
        }
    }

    fn is_usable(&self, options: &MountOptions) {
        self.broker.is_usable(options);
    }
}
