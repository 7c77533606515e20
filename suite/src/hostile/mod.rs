//! Volumes that want to hurt: where metadata lies, ways to damage it, and what a volume must bear.
//!
//! An image is damaged by a seed, then everything that the library can do with a volume is tried on
//! it in simulation: a panic, a deadlock and an access outside the device fail the case, as do memory
//! beyond the budget and acknowledged data that is not there.

pub mod base;
pub mod damage;
pub mod device;
pub mod exercise;
pub mod f2fs;
pub mod meter;
pub mod survey;
pub mod tell;

use std::path::Path;

use steadfs_lab::device::Image;

pub use base::Base;
pub use damage::Family;
pub use device::ImageDevice;
pub use exercise::{Outcome, exercise};
pub use survey::{Part, Survey};

/// Writes an image to a file, for other programs to look at.
///
/// # Panics
/// If that cannot be done.
pub fn save(image: &Image, path: &Path) {
    image.save(path).expect("a file can be written");
}
