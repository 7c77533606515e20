//! Pages of the manual: what clap's words make, with a title, a date, and sections of their own.
//!
//! **Rule.** Each page ends with EXAMPLES, EXIT STATUS and SEE ALSO. The date is SOURCE_DATE_EPOCH's if that is set, as for
//! packages, or today's.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use steadfs::Timestamp;
use steadfs::tools::utc;

const MANUAL: &str = "steadfs manual";

/// The date of the pages, as 2026-11-28.
pub fn date() -> String {
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok();
    let epoch = epoch.and_then(|text| text.parse().ok());
    let time = epoch.map_or_else(steadfs_rt::wall_clock, |secs| Timestamp { secs, nanos: 0 });
    utc(time, false).chars().take_while(|c| *c != ' ').collect()
}

/// The page of a command, which has its full name (`steadfs-key-add`), followed by `sections`.
pub fn page(command: Command, sections: Roff) -> io::Result<String> {
    let name = command.get_name().to_owned();
    let man = Man::new(command)
        .title(name.to_uppercase())
        .date(date())
        .source(concat!("steadfs ", env!("CARGO_PKG_VERSION")))
        .manual(MANUAL);
    let mut page = Vec::new();
    man.render(&mut page)?;
    let page = String::from_utf8(page).map_err(io::Error::other)?;
    Ok(tidied(&(page + &sections.to_roff())))
}

/// A page of section 8 that clap does not make.
pub fn other(name: &str, body: Roff) -> String {
    let mut roff = Roff::new();
    let (title, date) = (name.to_uppercase(), date());
    let source = concat!("steadfs ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [&*title, "8", &*date, source, MANUAL]);
    tidied(&(roff.to_roff() + &body.to_roff()))
}

/// Without blanks at the ends of lines, and with a space where clap_mangen breaks a line twice.
fn tidied(page: &str) -> String {
    let lines: Vec<&str> = page.lines().map(str::trim_end).collect();
    let text = lines.join("\n") + "\n";
    text.replace("\n.br\n\n.br\n", "\n.sp\n")
}

/// A section of paragraphs.
pub fn paragraphs(roff: &mut Roff, title: &str, texts: &[&str]) {
    roff.control("SH", [title]);
    for (n, text) in texts.iter().enumerate() {
        if n > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(*text)]);
    }
}

/// A section of words in bold and their meanings.
pub fn list(roff: &mut Roff, title: &str, items: &[(&str, &str)]) {
    roff.control("SH", [title]);
    for (word, meaning) in items {
        entry(roff, bold(*word), meaning);
    }
}

/// A word and its meaning.
pub fn entry(roff: &mut Roff, word: Inline, meaning: &str) {
    roff.control("TP", []);
    roff.text([word]);
    roff.text([roman(meaning)]);
}

/// The sections at the end of a page. `first`: the pages of this manual to read next.
pub fn ending(
    roff: &mut Roff,
    examples: &[(&str, &str)],
    codes: &[(&str, &str)],
    first: &str,
    others: &str,
) {
    list(roff, "EXAMPLES", examples);
    list(roff, "EXIT STATUS", codes);
    let separator = if others.is_empty() { "" } else { ", " };
    paragraphs(roff, "SEE ALSO", &[&format!("{first}{separator}{others}")]);
}
