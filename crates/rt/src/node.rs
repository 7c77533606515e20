//! The name of this machine.

use crate::sim::world;

/// The name of this machine as uname(2) has it. In simulation it is the same on all machines.
pub fn node_name() -> Vec<u8> {
    if world::simulated() {
        return b"simulation".to_vec();
    }
    rustix::system::uname().nodename().to_bytes().to_vec()
}
