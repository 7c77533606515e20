//! `IMAGE:/PATH` arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use steadfs::tools::{ToolError, glob, is_pattern, owner_cx, printable};

use crate::args::offline::Open;
use crate::failure::Failure;
use crate::partition;
use crate::volume::{Access, with_volume};

/// A file on a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OnVolume {
    pub image: PathBuf,
    pub path: Vec<u8>,
}

/// A file on a volume or on the host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Volume(OnVolume),
    Host(PathBuf),
    /// `-`: standard input or output.
    Stream,
}

/// Files on one image.
pub struct Group {
    pub image: PathBuf,
    pub paths: Vec<Vec<u8>>,
}

/// The files of each image, which is opened once; both in the order in which they are named.
pub fn grouped(named: Vec<OnVolume>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for OnVolume { image, path } in named {
        match groups.iter_mut().find(|group| group.image == image) {
            Some(group) => group.paths.push(path),
            None => groups.push(Group {
                image,
                paths: vec![path],
            }),
        }
    }
    groups
}

/// Parses an argument that must be on a volume: a plain path is the image itself.
pub fn on_volume(argument: &OsStr) -> OnVolume {
    match parse(argument) {
        Place::Volume(place) => place,
        Place::Host(_) | Place::Stream => OnVolume {
            image: PathBuf::from(argument),
            path: b"/".to_vec(),
        },
    }
}

/// The files that a place names: one, or those that its pattern matches. They are found before a command begins, so a
/// pattern without a match changes nothing.
pub fn expand(place: OnVolume, open: &Open) -> Result<Vec<OnVolume>, Failure> {
    let found = matching(&place, open)?;
    match found.is_empty() {
        true => Err(Failure::plain(format!(
            "{}:{}: no file matches",
            place.image.display(),
            printable(&place.path)
        ))),
        false => Ok(found),
    }
}

/// As [`expand`], but none if a pattern has no match.
pub fn matching(place: &OnVolume, open: &Open) -> Result<Vec<OnVolume>, Failure> {
    if !is_pattern(&place.path) {
        return Ok(vec![place.clone()]);
    }
    let image = &place.image;
    let paths = with_volume(image, open, Access::Read, |fs| {
        glob(fs, &owner_cx(), &place.path)
            .map_err(|error: ToolError| Failure::plain(format!("{}:{error}", image.display())))
    })?;
    let on_image = |path| OnVolume {
        image: image.clone(),
        path,
    };
    Ok(paths.into_iter().map(on_image).collect())
}

/// Parses an argument. A path of the host may contain `:/`, too: the first prefix that is a file is the image; a
/// leading `./` or `/` prefix that is a directory is not. `IMAGE:` is the root.
pub fn parse(argument: &OsStr) -> Place {
    let bytes = argument.as_bytes();
    if bytes == b"-" {
        return Place::Stream;
    }
    if steadfs::is_uri(Path::new(argument)) {
        return Place::Volume(in_export(bytes));
    }
    let colons = (0..bytes.len()).filter(|&at| matches!(&bytes[at..], [b':'] | [b':', b'/', ..]));
    let split = |at: usize| OnVolume {
        image: PathBuf::from(OsString::from_vec(bytes[..at].to_vec())),
        path: match &bytes[at + 1..] {
            b"" => b"/".to_vec(),
            path => path.to_vec(),
        },
    };
    let candidates: Vec<OnVolume> = colons
        .map(split)
        .filter(|c| c.image != Path::new(""))
        .collect();
    let is_image = |c: &&OnVolume| {
        let file = partition::file_of(&c.image);
        file.exists() && !file.is_dir()
    };
    let chosen = candidates.iter().find(is_image).or_else(|| {
        // There is no such image: report it as an image, unless the whole argument is an existing path.
        let whole = Path::new(argument);
        let is_host = whole.symlink_metadata().is_ok() || bytes.starts_with(b"./");
        candidates.first().filter(|_| !is_host)
    });
    match chosen {
        Some(place) => Place::Volume(place.clone()),
        None => Place::Host(PathBuf::from(argument)),
    }
}

/// Where the path of a URI begins, behind the server's name.
pub fn uri_path(bytes: &[u8]) -> usize {
    let scheme = bytes.windows(3).position(|word| word == b"://");
    let server = scheme.map_or(0, |at| at + 3);
    let len = bytes[server..].iter().position(|byte| *byte == b'/');
    server + len.unwrap_or(bytes.len() - server)
}

/// Splits `URI:/PATH` at the first colon that a slash or nothing follows, behind the server's name; without one it is the
/// root of the volume.
fn in_export(bytes: &[u8]) -> OnVolume {
    let from = uri_path(bytes);
    let mut colons = from..bytes.len();
    let at = colons.find(|&at| matches!(&bytes[at..], [b':'] | [b':', b'/', ..]));
    let (image, path) = match at {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b""[..]),
    };
    OnVolume {
        image: PathBuf::from(OsString::from_vec(image.to_vec())),
        path: if path.is_empty() { b"/" } else { path }.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        parse(OsStr::new(text))
    }

    fn volume(image: &Path, path: &str) -> Place {
        Place::Volume(OnVolume {
            image: image.to_owned(),
            path: path.as_bytes().to_vec(),
        })
    }

    #[test]
    fn uris_are_split_behind_the_name_of_the_server() {
        for (text, image, path) in [
            ("nbd://h/disk:/etc", "nbd://h/disk", "/etc"),
            ("nbd://h:10/disk:/a:/b", "nbd://h:10/disk", "/a:/b"),
            ("nbd://[::1]:10/:", "nbd://[::1]:10/", "/"),
            ("nbd://h/a/b@2:/x", "nbd://h/a/b@2", "/x"),
            ("nbd://h", "nbd://h", "/"),
            ("nbd://h:/x", "nbd://h:/x", "/"),
            ("nbd+unix:///?socket=/s:/x", "nbd+unix:///?socket=/s", "/x"),
            ("nbd+unix:///d?socket=/s", "nbd+unix:///d?socket=/s", "/"),
        ] {
            assert_eq!(place(text), volume(Path::new(image), path), "{text}");
            assert_eq!(Place::Volume(on_volume(OsStr::new(text))), place(text));
        }
    }

    #[test]
    fn images_and_paths_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a:/b.img".replace('/', "-"));
        std::fs::write(&image, b"").unwrap();
        let text = image.to_str().unwrap();
        assert_eq!(place(&format!("{text}:/x:/y")), volume(&image, "/x:/y"));
        assert_eq!(place(text), Place::Host(image.clone()));
        assert_eq!(place("no.img:/x"), volume(Path::new("no.img"), "/x"));
        assert_eq!(place("./no.img:/x"), Place::Host("./no.img:/x".into()));
        assert_eq!(place("plain"), Place::Host("plain".into()));
        assert_eq!(place(":/x"), Place::Host(":/x".into()));
        assert_eq!(place("a:b"), Place::Host("a:b".into()));
        assert_eq!(place(&format!("{text}:")), volume(&image, "/"));
        assert_eq!(place("no.img:"), volume(Path::new("no.img"), "/"));
        assert_eq!(place(":"), Place::Host(":".into()));
        assert_eq!(place("-"), Place::Stream);
        assert_eq!(place("./-"), Place::Host("./-".into()));
        let folder = dir.path().join("f:");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("g"), b"").unwrap();
        let text = folder.join("g");
        assert_eq!(parse(text.as_os_str()), Place::Host(text));
        let part = format!("{}@2", image.display());
        assert_eq!(
            place(&format!("{part}:/x@3")),
            volume(Path::new(&part), "/x@3")
        );
        let whole = on_volume(image.as_os_str());
        assert_eq!((whole.image, &whole.path[..]), (image, &b"/"[..]));
    }
}
