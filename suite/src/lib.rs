//! End-to-end tests: volumes on real mounts, judged by independent programs.
//!
//! The tests are in `tests/`; this library is what they share. They run as root. A missing judge fails the test that
//! needs it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod command;
pub mod f2fs;
pub mod fsyncs;
pub mod fuzz;
pub mod generate;
pub mod hostile;
pub mod image;
pub mod ioctl;
pub mod kernel;
pub mod matrix;
pub mod raw_fuse;
pub mod scratch;
pub mod stead;
pub mod tree;
pub mod uml;

pub use command::{Outcome, judge, run, succeed};
pub use image::Image;
pub use ioctl::ioctl;
pub use kernel::{KernelMount, LoopDevice};
pub use scratch::Scratch;
pub use stead::{SteadMount, steadfs, steadfs_when_idle};
pub use tree::{Compare, Tree};
