//! TLS to a server: whom it is trusted by, and a connection in its negotiation.
//!
//! The parameters of the URI and the files are those of the NBD project's `doc/uri.md`, as nbdkit and libnbd use them.

use std::fs;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::{Endpoint, NbdError};

/// Authorities that may have signed the server's certificate.
const AUTHORITIES: &str = "ca-cert.pem";
/// The client's certificate, which a server may ask for, and its key.
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";

/// What an `nbds` URI says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The directory with `ca-cert.pem` and, if the server asks for them, `client-cert.pem` and `client-key.pem`
    /// (`tls-certificates=`). Without it the host's authorities are trusted.
    pub certificates: Option<PathBuf>,
    /// The name in the server's certificate, if it is not the host of the URI (`tls-hostname=`).
    pub host: Option<String>,
}

/// How to make connections to one server.
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    has_certificate: bool,
}

impl Tls {
    /// Reads the certificates.
    pub fn new(endpoint: &Endpoint, options: &TlsOptions) -> Result<Self, NbdError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let dir = options.certificates.as_deref();
        let config = config.with_root_certificates(match dir {
            Some(dir) => authorities(dir)?,
            None => authorities_of_host()?,
        });
        let identity = dir.map(identity).transpose()?.flatten();
        let has_certificate = identity.is_some();
        let config = match identity {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(failed)?,
            None => config.with_no_client_auth(),
        };
        Ok(Self {
            config: Arc::new(config),
            name: server_name(endpoint, options.host.as_deref())?,
            has_certificate,
        })
    }

    /// Starts a connection whose handshake is to come.
    pub fn start(&self) -> Result<ClientConnection, NbdError> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(failed)
    }

    /// The error of the first exchange after the handshake: a server that misses a certificate of the client may end the
    /// connection without a word.
    pub fn without_words(&self, error: NbdError) -> NbdError {
        match error {
            NbdError::Lost(error) if !self.has_certificate => NbdError::Tls(format!(
                "the server has ended the connection: {error}{ASKED}"
            )),
            error => error,
        }
    }
}

/// The way out where a server asks for a certificate.
const ASKED: &str =
    " (a server that asks for a certificate gets client-cert.pem of tls-certificates=DIRECTORY)";

/// An error of TLS, with the way out where there is one.
pub fn failed(error: rustls::Error) -> NbdError {
    let way = match error {
        rustls::Error::InvalidCertificate(_) => {
            " (tls-certificates=DIRECTORY names ca-cert.pem, tls-hostname=NAME the certificate's host)"
        }
        rustls::Error::AlertReceived(_) => ASKED,
        _ => "",
    };
    NbdError::Tls(format!("{error}{way}"))
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> NbdError {
    NbdError::Tls(format!("{}: {why}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, NbdError> {
    let text = fs::read(path).map_err(|error| unusable(path, &error))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| unusable(path, &error))?;
    match all.is_empty() {
        true => Err(unusable(path, &"has no certificate in PEM form")),
        false => Ok(all),
    }
}

fn authorities(dir: &Path) -> Result<RootCertStore, NbdError> {
    let path = dir.join(AUTHORITIES);
    let mut store = RootCertStore::empty();
    for certificate in certificates(&path)? {
        let added = store.add(certificate);
        added.map_err(|error| unusable(&path, &error))?;
    }
    Ok(store)
}

fn authorities_of_host() -> Result<RootCertStore, NbdError> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match store.is_empty() {
        true => Err(NbdError::Tls(
            "this host has no authorities (ca-certificates): name ca-cert.pem by tls-certificates=DIRECTORY"
                .to_owned(),
        )),
        false => Ok(store),
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The client's certificate and key, if they are there.
fn identity(dir: &Path) -> Result<Option<Identity>, NbdError> {
    let (certificate, key) = (dir.join(CERTIFICATE), dir.join(KEY));
    if !certificate.exists() && !key.exists() {
        return Ok(None);
    }
    let chain = certificates(&certificate)?;
    let text = fs::read(&key).map_err(|error| unusable(&key, &error))?;
    let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| unusable(&key, &error))?;
    Ok(Some((chain, private)))
}

/// The name that the certificate must have: of a Unix socket that of this host, as libnbd wants it.
fn server_name(endpoint: &Endpoint, given: Option<&str>) -> Result<ServerName<'static>, NbdError> {
    let host = match (given, endpoint) {
        (Some(given), _) => given,
        (None, Endpoint::Tcp(host, _)) => host,
        (None, Endpoint::Unix(_)) => "localhost",
    };
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(ServerName::from(address));
    }
    let name = ServerName::try_from(host.to_owned());
    name.map_err(|_| NbdError::Tls(format!("{host:?} is no name of a host")))
}

/// A socket as rustls wants it, by read(2) and write(2) only.
pub struct Socket<'s>(pub &'s OwnedFd);

impl Read for Socket<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        again(|| rustix::io::read(self.0, &mut *buf))
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        again(|| rustix::io::write(self.0, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn again(mut call: impl FnMut() -> Result<usize, Errno>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Whether a call of a non-blocking socket would wait; other errors are passed on.
pub fn would_wait(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
