//! The name of this machine.

use crate::sim::world;

/// The name of this machine as uname(2) has it. In simulation it is the same on all machines.
pub fn node_name() -> Vec<u8> {
    if world::simulated() {
        return b"simulation".to_vec();
    }
    host_name()
}

#[cfg(unix)]
fn host_name() -> Vec<u8> {
    rustix::system::uname().nodename().to_bytes().to_vec()
}

#[cfg(not(unix))]
fn host_name() -> Vec<u8> {
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    name.into_bytes()
}
