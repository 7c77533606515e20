//! End-to-end tests: volumes on real mounts, judged by programs that are not ours.
//!
//! The tests are in `tests/`; here is what they share. They run as root. A judge that is missing
//! fails the test that asks it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod command;
pub mod f2fs;
pub mod fsyncs;
pub mod generate;
pub mod hostile;
pub mod image;
pub mod ioctl;
pub mod kernel;
pub mod matrix;
pub mod scratch;
pub mod stead;
pub mod tree;
pub mod uml;

pub use command::{Outcome, judge, run, succeed};
pub use image::Image;
pub use ioctl::ioctl;
pub use kernel::{KernelMount, LoopDevice};
pub use scratch::Scratch;
pub use stead::{SteadMount, steadfs, steadfs_patiently};
pub use tree::{Compare, Tree};
