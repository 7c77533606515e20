//! Error messages of commands on volumes.

use std::path::Path;

use steadfs::tools::{Progress, ToolError, printable_text};

use crate::stderr::say;
use crate::stop::Stop;

/// Prints an error.
pub fn complain(message: &str) {
    say(format_args!("steadfs: {}", printable_text(message)));
}

/// An error with the image that it concerns.
pub fn on_image(image: &Path, error: &ToolError) -> String {
    match error {
        ToolError::Wrong(_) => format!("{}: {error}", image.display()),
        _ => format!("{}:{error}", image.display()),
    }
}

/// Prints what fails, with the image it is on.
pub struct Reporter<'r> {
    pub image: &'r Path,
    pub stop: &'r Stop,
}

impl Progress for Reporter<'_> {
    fn file(&mut self, _: &[u8], _: &[u8]) {}
    fn bytes(&mut self, _: u64) {}
    fn problem(&mut self, error: &ToolError) {
        complain(&on_image(self.image, error));
    }
    fn stopped(&self) -> bool {
        self.stop.is_asked()
    }
}
