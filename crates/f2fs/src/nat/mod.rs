//! The node address table (NAT): where each node is.
//!
//! An entry is looked up in this order: changes since the last snapshot, the snapshot of the checkpoint in flight, the
//! journal of the last durable checkpoint, the current copy of the NAT block.

mod flush;
mod free;
mod table;

pub use flush::{NatPlan, NatWrites};
pub use table::Nat;
