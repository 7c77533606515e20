//! `steadfs tar`.

use std::io::{self, BufWriter, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use signal_hook::consts::SIGPIPE;
use steadfs::tools::{ToolError, amount_on_volume, owner_cx, tar_out};

use crate::args;
use crate::copy::{DATA_PER_SIZE, end, failure, file_of, selection, size_of};
use crate::failure::Failure;
use crate::output::Until;
use crate::place::{OnVolume, on_volume};
use crate::progress::Line;
use crate::stop::Stop;
use crate::volume::{Access, with_volume};

/// Bytes of the archive that are written at once.
const BUFFER: usize = 1 << 18;

pub fn run(args: &args::Tar) -> Result<(), Failure> {
    let place = on_volume(&args.place);
    let selection = selection(&args.select)?;
    let stop = Stop::on_signals()?;
    let size = size_of(&place.image).filter(|_| !args.unlimited);
    let data_max = size.map(|size| size.saturating_mul(DATA_PER_SIZE));
    let mut line = Line::of_copy(stop.clone(), false);
    let done = with_volume(&place.image, &args.open, Access::Read, |fs| {
        // Opened after the volume, so that a wrong image empties no archive.
        let (out, to) = output(args.file.as_deref(), &place, &stop)?;
        let mut out = BufWriter::with_capacity(BUFFER, out);
        let cx = owner_cx();
        if args.select.is_all() {
            line.ends_after(|| amount_on_volume(fs, &cx, &place.path, false));
        }
        let done = tar_out(
            fs,
            &cx,
            &place.path,
            data_max,
            selection,
            (&mut out, to),
            &mut line,
        );
        // Not flushed again: all is written, or it has failed, or the archive has no end.
        let (out, _) = out.into_parts();
        let done = done.and_then(|report| match steadfs_rt::close(out.into_file()) {
            Ok(()) => Ok(report),
            Err(source) => Err(ToolError::Host {
                path: to.to_owned(),
                source,
            }),
        });
        done.map_err(|error| match error {
            _ if stop.is_asked() => failure(&ToolError::Stopped, &stop),
            ToolError::Host { source, .. } if source.kind() == io::ErrorKind::BrokenPipe => {
                Failure::by_signal(SIGPIPE, "")
            }
            error => failure(&error, &stop),
        })
    });
    line.done();
    end(done?)
}

/// Opens the archive, which must not be the image itself.
fn output<'a, 's>(
    file: Option<&'a Path>,
    place: &OnVolume,
    stop: &'s Stop,
) -> Result<(Until<'s>, &'a Path), Failure> {
    let fail = |path: &Path, why: &dyn std::fmt::Display| {
        Failure::plain(format!("{}: {why}", path.display()))
    };
    let Some(path) = file.filter(|path| *path != Path::new("-")) else {
        if io::stdout().is_terminal() {
            let why = "an archive is not written to a terminal; -f FILE names a file";
            return Err(Failure::plain(why));
        }
        let shown = Path::new("standard output");
        let out = Until::on(io::stdout().as_fd(), stop);
        return Ok((out.map_err(|error| fail(shown, &error))?, shown));
    };
    let same = |found: std::fs::Metadata| file_of(&place.image) == Some((found.dev(), found.ino()));
    if path.metadata().is_ok_and(same) {
        return Err(fail(path, &"is the image that is read"));
    }
    let out = Until::create(path, stop);
    let out = out.map_err(|error| match stop.is_asked() {
        true => failure(&ToolError::Stopped, stop),
        false => fail(path, &error),
    });
    Ok((out?, path))
}
