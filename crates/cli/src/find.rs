//! `find`.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use steadfs::tools::find::{Expression, FileTimes, Output, Outside, find};
use steadfs::tools::{Visited, owner_cx};
use steadfs_base::Timestamp;

use crate::args;
use crate::args::offline::Open;
use crate::failure::Failure;
use crate::json::{File, List, Place};
use crate::output::{escapes, print, stream};
use crate::reference::found;
use crate::report::Reporter;
use crate::stop::Stop;
use crate::trees::{failure, for_each_path, for_each_volume, groups, prefix};
use crate::volume::Access;

/// The files that an expression compares with.
struct Files<'f> {
    open: &'f Open,
}

impl Outside for Files<'_> {
    fn now(&self) -> Timestamp {
        steadfs_rt::wall_clock()
    }

    fn times(&mut self, place: &OsStr) -> Result<FileTimes, String> {
        let found = found(place, self.open, false);
        found
            .map(|found| found.times)
            .map_err(|failure| failure.message)
    }
}

/// Splits the arguments where the expression begins.
fn split(words: &[OsString]) -> (&[OsString], &[OsString]) {
    let begins = |word: &OsString| {
        let bytes = word.as_bytes();
        matches!(bytes, b"(" | b")" | b"," | b"!") || (bytes.len() > 1 && bytes[0] == b'-')
    };
    let end = words.iter().position(begins).unwrap_or(words.len());
    words.split_at(end)
}

pub fn run(args: &args::Find) -> Result<(), Failure> {
    let (places, words) = split(&args.words);
    if places.is_empty() {
        let why = "find needs IMAGE:/PATH before the expression";
        return Err(Failure::plain(why));
    }
    let mut files = Files { open: &args.open };
    let expression = Expression::parse(words, &mut files)
        .map_err(|why| Failure::plain(format!("find: {why}")))?;
    if args.json && expression.formats() {
        let why = "find: --json goes with -print only, not with -print0, -printf and -ls";
        return Err(Failure::plain(why));
    }
    let groups = groups(places, &args.open)?;
    let access = match expression.deletes() {
        true => Access::Write,
        false => Access::Read,
    };
    let stop = Stop::on_signals()?;
    let escape = escapes();
    let mut list = List::default();
    let done = for_each_volume(&groups, &args.open, access, |fs, group| {
        let cx = owner_cx();
        let prefix = prefix(group);
        let work = |out: &mut dyn Write| {
            for_each_path(group, |path| {
                let mut reporter = Reporter {
                    image: &group.image,
                    stop: &stop,
                };
                let mut json = |out: &mut dyn Write, file: Visited<'_>, target: Option<&[u8]>| {
                    let place = Place::new(&group.image, file.path);
                    list.add(out, &File::new(place, file.attr, target))
                };
                let output = Output {
                    out: &mut *out,
                    printer: args.json.then_some(&mut json),
                    prefix: &prefix,
                    escape,
                };
                let place = (path, args.follow);
                find(fs, &cx, place, &expression, output, &mut reporter)
            })
        };
        stream(work, |error| failure(group, &stop, &error))
    });
    if args.json && !done.as_ref().is_err_and(Failure::is_signal) {
        print(|out| list.end(out))?;
    }
    done
}
