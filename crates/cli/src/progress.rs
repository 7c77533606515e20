//! How long work shows itself when somebody watches.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use steadfs::tools::{Progress, printable};

/// A line with what was copied so far and what is being copied. Hidden unless standard error is a
/// terminal.
pub struct Line {
    bar: ProgressBar,
    files: u64,
}

impl Line {
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
        let template = "{spinner} {bytes} ({bytes_per_sec}) {prefix} files: {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, files: 0 }
    }

    /// Takes the line away.
    pub fn done(self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Line {
    fn file(&mut self, path: &[u8]) {
        self.files += 1;
        if !self.bar.is_hidden() {
            self.bar.set_prefix(self.files.to_string());
            self.bar.set_message(printable(path));
        }
    }

    fn bytes(&mut self, count: u64) {
        self.bar.inc(count);
    }
}
