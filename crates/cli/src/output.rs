//! Standard output.

use std::io::{self, BufWriter, Write};

use signal_hook::consts::SIGPIPE;

use crate::failure::Failure;

/// Writes to standard output. If the reader has closed the pipe, the command ends like any other in a pipeline:
/// silently, by SIGPIPE.
pub fn print(work: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match work(&mut out).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            // The rest of the buffer is dropped.
            drop(out.into_parts());
            Err(Failure::by_signal(SIGPIPE, ""))
        }
        Err(error) => Err(Failure::plain(format!("standard output: {error}"))),
    }
}
