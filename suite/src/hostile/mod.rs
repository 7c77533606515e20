//! Hostile volumes: where metadata is, how to corrupt it, and the rules that the library must keep.
//!
//! An image is corrupted by a seed, then every operation of the library is tried on it in simulation. A panic, a
//! deadlock, an access outside the device, memory beyond the budget and silent loss of acknowledged data fail the case.

pub mod base;
pub mod corruption;
pub mod device;
pub mod encrypted;
pub mod exercise;
pub mod f2fs;
pub mod meter;
pub mod survey;
pub mod values;

use std::path::Path;

use steadfs_lab::device::Image;

pub use base::Base;
pub use corruption::Family;
pub use device::ImageDevice;
pub use exercise::{Outcome, exercise};
pub use survey::{Part, Survey};

/// Writes an image to a file, for other programs.
///
/// # Panics
/// If the file cannot be written.
pub fn save(image: &Image, path: &Path) {
    image.save(path).expect("a file can be written");
}
