//! A volume is made, written, listed and checked: README's example.

use std::io::Write;

use steadfs::{FormatOptions, Options, Volume};

fn main() -> std::io::Result<()> {
    steadfs::format("disk.img", Some(64 << 20), &FormatOptions::default())?;

    let volume = Volume::open("disk.img")?;
    volume.create_dir_all("/etc/network")?;
    volume.write("/etc/hostname", "box\n")?;
    let mut log = volume.open_file().append(true).create(true).open("/log")?;
    writeln!(log, "hello")?;
    log.sync_all()?; // survives a power cut from here on
    for entry in volume.walk("/")? {
        let entry = entry?;
        println!("{} {}", entry.metadata()?.len(), entry.path().display());
    }
    volume.close()?; // writes everything, and says if it could not

    let checked = steadfs::check("disk.img", &Options::default(), &mut |_| {})?;
    assert!(checked.is_clean());
    Ok(())
}
