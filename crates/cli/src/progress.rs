//! Progress display on a terminal.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use steadfs::tools::edit::Question;
use steadfs::tools::{Progress, ToolError, printable, printable_text};

use crate::changes::is_agreed;
use crate::copy::words;
use crate::failure::Failure;
use crate::output::{Unwritten, print};
use crate::stderr::say;
use crate::stop::Stop;

/// Operations shorter than this show no progress.
const SOON: Duration = Duration::from_millis(400);
/// Interval in which the line moves when there is no news.
const TICK: Duration = Duration::from_millis(200);

/// The lines of a copy whose size is not known, and of one whose size is known about.
const ENDLESS: &str = "{spinner} {bytes} ({bytes_per_sec}) {prefix} files: {wide_msg}";
const TO_END: &str = "{spinner} {bytes} of about {total_bytes} ({bytes_per_sec}, {eta} left) {prefix} files: {wide_msg}";

/// A line on standard error with the work done so far, if that is a terminal and the work takes long.
pub struct Line {
    bar: ProgressBar,
    files: u64,
    stop: Option<Stop>,
    verbose: bool,
    unwritten: Unwritten,
    /// What begins each error.
    place: String,
    begun: steadfs_rt::Instant,
    shown: bool,
}

impl Line {
    /// For copies: bytes, speed, files, and the one being copied. `verbose` prints each on standard output, too.
    pub fn of_copy(stop: Stop, verbose: bool) -> Self {
        Self {
            stop: Some(stop),
            verbose,
            ..Self::new(ENDLESS, "")
        }
    }

    /// Shows the end of a copy, too, if it is known about how many bytes it has. They are counted for a terminal only.
    pub fn ends_after(&mut self, amount: impl FnOnce() -> Option<u64>) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        if let Some(bytes) = amount() {
            self.bar.set_length(bytes);
            set_style(&self.bar, TO_END);
        }
    }

    /// For operations that read the volume.
    pub fn of_reading(name: &'static str) -> Self {
        Self::new("{spinner} {msg}, {elapsed}: {bytes} read", name)
    }

    /// For operations that report no progress.
    pub fn of_silence(name: &'static str) -> Self {
        let mut line = Self::new("{spinner} {msg}, {elapsed}", name);
        line.show();
        line
    }

    /// Errors begin with `place`, such as the line of a script.
    pub fn at(self, place: &str) -> Self {
        let place = place.to_owned();
        Self { place, ..self }
    }

    fn new(template: &str, name: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        set_style(&bar, template);
        bar.set_message(name);
        Self {
            bar,
            files: 0,
            stop: None,
            verbose: false,
            unwritten: Unwritten::default(),
            place: String::new(),
            begun: steadfs_rt::now(),
            shown: false,
        }
    }

    fn show(&mut self) {
        self.shown = true;
        // Stays hidden unless it is a terminal.
        self.bar
            .set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        if !self.bar.is_hidden() {
            self.bar.enable_steady_tick(TICK);
        }
    }

    fn is_shown(&mut self) -> bool {
        if !self.shown && self.begun.elapsed() > SOON {
            self.show();
        }
        self.shown && !self.bar.is_hidden()
    }

    /// Prints an error above the line.
    pub fn say(&self, message: &str) {
        let message = printable_text(&format!("{}{message}", self.place));
        self.bar.suspend(|| say(format_args!("steadfs: {message}")));
    }

    /// Why copies could not be printed on standard output.
    pub fn take_unwritten(&mut self) -> Option<Failure> {
        self.unwritten.take()
    }

    /// Removes the line.
    pub fn done(self) {
        self.bar.finish_and_clear();
    }
}

fn set_style(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.tick_chars("|/-\\ "));
    }
}

impl Progress for Line {
    fn file(&mut self, source: &[u8], target: &[u8]) {
        self.files += 1;
        if self.verbose {
            let names = (printable(source), printable(target));
            let line = |out: &mut dyn Write| writeln!(out, "'{}' -> '{}'", names.0, names.1);
            self.unwritten.add(self.bar.suspend(|| print(line)));
        }
        if self.is_shown() {
            self.bar.set_prefix(self.files.to_string());
            self.bar.set_message(printable(source));
        }
    }

    fn problem(&mut self, error: &ToolError) {
        self.say(&words(error));
    }

    fn bytes(&mut self, count: u64) {
        self.bar.inc(count);
        self.is_shown();
    }

    fn confirm(&mut self, question: &Question<'_>) -> bool {
        match question {
            Question::Overwrite(path) => {
                let question = format!("cp: overwrite '{}'?", printable(path));
                self.bar.suspend(|| is_agreed(&question))
            }
            // These are asked by `rm`.
            Question::Remove { .. } | Question::Descend(_) | Question::RemoveDirectory(_) => true,
        }
    }

    fn stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(Stop::is_asked)
    }
}
