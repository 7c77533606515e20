//! NBD URIs: `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`; with TLS `nbds://` and `nbds+unix://`.

use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::{NbdError, TlsOptions};

/// The port that is registered for NBD.
const DEFAULT_PORT: u16 = 10809;
/// Longest name of an export, in bytes (as in the protocol).
const NAME_MAX: usize = 4096;
const SCHEMES: [&str; 4] = ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"];

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host, by name or address, and a TCP port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// The server.
    pub endpoint: Endpoint,
    /// The name of the export; empty: the server's default one.
    pub export: Vec<u8>,
    /// How the connection is encrypted, if it is to be.
    pub tls: Option<TlsOptions>,
}

/// Whether an argument is an NBD URI, not a path.
pub fn is_uri(argument: &Path) -> bool {
    let bytes = argument.as_os_str().as_bytes();
    SCHEMES
        .iter()
        .any(|scheme| bytes.starts_with(scheme.as_bytes()))
}

impl NbdUri {
    /// Parses a URI.
    ///
    /// # Errors
    /// [`NbdError::Uri`].
    pub fn parse(argument: &Path) -> Result<Self, NbdError> {
        let refused = |why: &str| Err(NbdError::Uri(why.to_owned()));
        let Some(text) = argument.to_str() else {
            return refused("an NBD URI is ASCII text (other bytes are written as %XX)");
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            return refused("no NBD URI");
        };
        let (is_tls, is_unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return refused("no NBD URI"),
        };
        if rest.contains('#') {
            return refused("an NBD URI has no fragment: write %23 for #");
        }
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, name) = before.split_once('/').unwrap_or((before, ""));
        let export = decoded(name)?;
        if export.len() > NAME_MAX {
            return refused("the name of the export is too long");
        }
        let parameters = Parameters::of(query)?;
        if !is_tls && parameters.tls != TlsOptions::default() {
            return refused("parameters of TLS are for nbds:// and nbds+unix://");
        }
        let endpoint = match (is_unix, parameters.socket) {
            (true, Some(path)) if !authority.is_empty() => {
                let path = path.display();
                return refused(&format!(
                    "a Unix socket has no host: write {scheme}:///EXPORT?socket={path}"
                ));
            }
            (true, Some(path)) => Endpoint::Unix(path),
            (true, None) => {
                let what = format!("socket= is missing: {scheme}:///EXPORT?socket=PATH");
                return refused(&what);
            }
            (false, Some(_)) => return refused("socket= is for nbd+unix and nbds+unix"),
            (false, None) => tcp(authority)?,
        };
        Ok(Self {
            endpoint,
            export,
            tls: is_tls.then_some(parameters.tls),
        })
    }
}

/// What follows the `?` of a URI.
#[derive(Default)]
struct Parameters {
    socket: Option<PathBuf>,
    tls: TlsOptions,
}

impl Parameters {
    fn of(query: &str) -> Result<Self, NbdError> {
        let mut found = Self::default();
        for item in query.split('&').filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            match name {
                "socket" => found.socket = Some(absolute(name, value)?),
                "tls-certificates" => found.tls.certificates = Some(absolute(name, value)?),
                "tls-hostname" => {
                    let host = String::from_utf8(decoded(value)?);
                    let host = host.map_err(|_| NbdError::Uri(format!("{item:?} is no text")))?;
                    found.tls.host = Some(host);
                }
                _ => {
                    let way = match name {
                        "tls-psk-file" => " (tls-certificates=DIRECTORY is)",
                        "tls-verify-peer" => " (a server is always verified: tls-hostname=NAME)",
                        _ => "",
                    };
                    let what = format!("parameter {name:?} of the URI is not supported{way}");
                    return Err(NbdError::Uri(what));
                }
            }
        }
        Ok(found)
    }
}

/// A path in a parameter.
fn absolute(name: &str, value: &str) -> Result<PathBuf, NbdError> {
    let path = PathBuf::from(std::ffi::OsString::from_vec(decoded(value)?));
    match path.is_absolute() {
        true => Ok(path),
        false => Err(NbdError::Uri(format!(
            "{name}= must be an absolute path, because a mount has another working directory"
        ))),
    }
}

fn tcp(authority: &str) -> Result<Endpoint, NbdError> {
    let refused = |why: &str| Err(NbdError::Uri(format!("{why} in {authority:?}")));
    if authority.contains('@') {
        return refused(
            "users are for TLS by shared keys, which is not supported (certificates are),",
        );
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let Some((host, after)) = rest.split_once(']') else {
                return refused("] is missing");
            };
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return refused("a port begins with a colon"),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return refused("no host: nbd://HOST[:PORT]/EXPORT; it is missing");
    }
    let port = match port.map(str::parse::<u16>) {
        None => DEFAULT_PORT,
        Some(Ok(port)) if port > 0 => port,
        Some(_) => return refused("no port number"),
    };
    match String::from_utf8(decoded(host)?) {
        Ok(host) => Ok(Endpoint::Tcp(host, port)),
        Err(_) => refused("the host is no text"),
    }
}

/// The text with its %XX.
fn decoded(text: &str) -> Result<Vec<u8>, NbdError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digit = |at: usize| char::from(*rest.get(at)?).to_digit(16);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            let what = format!("% without two hexadecimal digits in {text:?}");
            return Err(NbdError::Uri(what));
        };
        bytes.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    if bytes.contains(&0) {
        return Err(NbdError::Uri(format!("%00 in {text:?}")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(String, Vec<u8>), String> {
        NbdUri::parse(Path::new(text))
            .map(|uri| (uri.endpoint.to_string(), uri.export))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn uris_are_parsed() {
        for (text, endpoint, export) in [
            ("nbd://localhost", "localhost:10809", ""),
            ("nbd://localhost/", "localhost:10809", ""),
            ("nbd://h:1/disk", "h:1", "disk"),
            ("nbd://[::1]:2/a/b", "[::1]:2", "a/b"),
            ("nbd://[::1]/", "[::1]:10809", ""),
            ("nbd://h//x", "h:10809", "/x"),
            ("nbd://h/a%20b%2f", "h:10809", "a b/"),
            ("nbd+unix:///?socket=/run/x.sock", "/run/x.sock", ""),
            ("nbd+unix:///d?socket=/run/x%3A", "/run/x:", "d"),
            ("nbds://h/d", "h:10809", "d"),
            ("nbds+unix:///d?socket=/x", "/x", "d"),
        ] {
            let wanted = (endpoint.to_owned(), export.as_bytes().to_vec());
            assert_eq!(parsed(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn tls_has_a_directory_and_a_host() {
        let tls = |text: &str| NbdUri::parse(Path::new(text)).unwrap().tls;
        assert_eq!(tls("nbd://h/"), None);
        assert_eq!(tls("nbds://h/"), Some(TlsOptions::default()));
        let given = tls("nbds://h/?tls-certificates=/etc/a%20b&tls-hostname=disk.example");
        let wanted = TlsOptions {
            certificates: Some("/etc/a b".into()),
            host: Some("disk.example".to_owned()),
        };
        assert_eq!(given, Some(wanted));
    }

    #[test]
    fn uris_that_mean_nothing_are_refused() {
        for (text, why) in [
            ("nbds+unix:///x", "nbds+unix:///EXPORT?socket="),
            ("nbds://h/x?tls-psk-file=/f", "tls-certificates"),
            ("nbds://h/x?tls-verify-peer=false", "always verified"),
            ("nbds://h/x?tls-certificates=f", "absolute"),
            ("nbd://h/x?tls-certificates=/f", "nbds://"),
            ("nbd://h:/x", "port"),
            ("nbd://h:0/x", "port"),
            ("nbd://h:65536/x", "port"),
            ("nbd://:1/x", "host"),
            ("nbd:///x", "host"),
            ("nbd://u@h/x", "TLS"),
            ("nbd://[::1/x", "]"),
            ("nbd://h/%4", "%"),
            ("nbd://h/%zz", "%"),
            ("nbd://h/%00", "%00"),
            ("nbd://h/x#y", "%23"),
            ("nbd://h/x?socket=/s", "nbd+unix"),
            ("nbd+unix:///x", "socket="),
            ("nbd+unix://h/x?socket=/s", "no host"),
            ("nbd+unix:///x?socket=s", "absolute"),
            ("nbd+unix:///x?tls=1", "tls"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let long = format!("nbd://h/{}", "x".repeat(NAME_MAX + 1));
        assert!(parsed(&long).unwrap_err().contains("too long"));
    }

    #[test]
    fn paths_are_no_uris() {
        for (text, is) in [
            ("nbd://h/", true),
            ("nbds://h/", true),
            ("nbd+unix:///?socket=/x", true),
            ("nbd:/h", false),
            ("./nbd://h/", false),
            ("disk.img", false),
        ] {
            assert_eq!(is_uri(Path::new(text)), is, "{text}");
        }
    }
}
