//! The checker against f2fs-tools: both must find the same volumes clean, and the same ones corrupt.

mod clean;
mod flips;
mod provoked;

use super::*;
use crate::test_support::{Image, LOAD_FEATURES, assert_clean, fsck, words};
