//! Tests of the whole volume.

mod crossed;
