//! The steadfs command line.
fn main() {}
