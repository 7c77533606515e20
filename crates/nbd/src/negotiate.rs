//! The negotiation: from an open connection to an export.
//!
//! Every reply is bounded ([`REPLY_MAX`], [`REPLIES_MAX`]), and the connection has a deadline ([`Link`]).

use crate::NbdError;
use crate::error::shown;
use crate::export::{BlockSizes, Export};
use crate::link::Link;
use crate::tls::Tls;
use crate::wire::{self, Fields};

/// Most bytes of one reply to an option: two strings of the protocol's largest length, and numbers.
const REPLY_MAX: u32 = 16 << 10;
/// Most replies to one option.
const REPLIES_MAX: usize = 10_000;
/// Exports that an error lists.
const LISTED: usize = 10;
/// Zeros behind the answer to the old way to choose an export.
const EXPORT_NAME_ZEROS: usize = 124;

/// A reply to an option.
struct OptionReply {
    kind: u32,
    data: Vec<u8>,
}

/// Negotiates the export with this name.
pub fn negotiate(link: &mut Link, name: &[u8], tls: Option<&Tls>) -> Result<Export, NbdError> {
    let no_zeroes = greet(link)?;
    if let Some(tls) = tls {
        start_tls(link, tls)?;
    }
    let structured = structured_replies(link).map_err(|error| match tls {
        Some(tls) => tls.without_words(error),
        None => error,
    })?;
    link.send(&wire::option(wire::OPT_GO, &go_data(name)))?;
    let mut found = None;
    let mut sizes = None;
    for _ in 0..REPLIES_MAX {
        let reply = reply_to(link, wire::OPT_GO)?;
        match reply.kind {
            wire::REP_INFO => match info(&reply.data)? {
                Info::Export(size, flags) => found = Some((size, flags)),
                Info::Sizes(these) => sizes = Some(these),
                Info::Other => {}
            },
            wire::REP_ACK => {
                let missing = || NbdError::Protocol("no size of the export".to_owned());
                return Export::new(found.ok_or_else(missing)?, sizes, structured);
            }
            wire::REP_ERR_UNSUP => return by_export_name(link, name, structured, no_zeroes),
            kind if wire::is_error_reply(kind) => {
                let error = refusal(link, name, &reply);
                // The server may have ended the connection.
                let _ = link.send(&wire::option(wire::OPT_ABORT, &[]));
                return Err(error);
            }
            kind => return Err(unexpected(kind)),
        }
    }
    Err(too_many())
}

fn too_many() -> NbdError {
    NbdError::Protocol(format!("more than {REPLIES_MAX} replies to an option"))
}

fn unexpected(kind: u32) -> NbdError {
    NbdError::Protocol(format!("reply {kind:#x} to an option"))
}

/// Reads the greeting and answers it; returns whether zeros are left out.
fn greet(link: &mut Link) -> Result<bool, NbdError> {
    if u64::from_be_bytes(link.array()?) != wire::MAGIC {
        return Err(NbdError::Protocol("it is no NBD server".to_owned()));
    }
    match u64::from_be_bytes(link.array()?) {
        wire::OPTION_MAGIC => {}
        wire::OLDSTYLE_MAGIC => {
            let what = "it is an oldstyle NBD server: only newstyle ones are supported (nbdkit -n)";
            return Err(NbdError::Refused(what.to_owned()));
        }
        _ => return Err(NbdError::Protocol("it is no NBD server".to_owned())),
    }
    let flags = u16::from_be_bytes(link.array()?);
    if flags & wire::FIXED_NEWSTYLE == 0 {
        let what = "the NBD server has no fixed newstyle negotiation, which steadfs needs";
        return Err(NbdError::Refused(what.to_owned()));
    }
    let common = flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
    link.send(&u32::from(common).to_be_bytes())?;
    Ok(common & wire::NO_ZEROES != 0)
}

/// What follows is encrypted, or there is no connection.
fn start_tls(link: &mut Link, tls: &Tls) -> Result<(), NbdError> {
    link.send(&wire::option(wire::OPT_STARTTLS, &[]))?;
    let reply = reply_to(link, wire::OPT_STARTTLS)?;
    match reply.kind {
        wire::REP_ACK => link.start_tls(tls),
        kind if wire::is_error_reply(kind) => Err(NbdError::Refused(
            "the NBD server has no TLS (nbds): nbd:// and nbd+unix:// connect without it"
                .to_owned(),
        )),
        kind => Err(unexpected(kind)),
    }
}

fn structured_replies(link: &mut Link) -> Result<bool, NbdError> {
    link.send(&wire::option(wire::OPT_STRUCTURED_REPLY, &[]))?;
    let reply = reply_to(link, wire::OPT_STRUCTURED_REPLY)?;
    match reply.kind {
        wire::REP_ACK => Ok(true),
        wire::REP_ERR_TLS_REQD => Err(needs_tls()),
        kind if wire::is_error_reply(kind) => Ok(false),
        kind => Err(unexpected(kind)),
    }
}

fn needs_tls() -> NbdError {
    NbdError::Refused(
        "the NBD server requires TLS: write nbds:// for nbd://, nbds+unix:// for nbd+unix://"
            .to_owned(),
    )
}

/// The name, and a question for the block sizes.
fn go_data(name: &[u8]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend(1_u16.to_be_bytes());
    data.extend(wire::INFO_BLOCK_SIZE.to_be_bytes());
    data
}

fn reply_to(link: &mut Link, option: u32) -> Result<OptionReply, NbdError> {
    let header: [u8; 20] = link.array()?;
    let mut fields = Fields(&header);
    let (magic, of) = (fields.u64(), fields.u32());
    let (kind, len) = (fields.u32(), fields.u32());
    if magic != Some(wire::OPTION_REPLY_MAGIC) || of != Some(option) {
        return Err(NbdError::Protocol("a reply to no option".to_owned()));
    }
    let (kind, len) = (kind.unwrap_or_default(), len.unwrap_or_default());
    if len > REPLY_MAX {
        let what = format!("a reply of {len} bytes to an option");
        return Err(NbdError::Protocol(what));
    }
    let mut data = vec![0; len as usize];
    link.receive(&mut data)?;
    Ok(OptionReply { kind, data })
}

enum Info {
    Export(u64, u16),
    Sizes(BlockSizes),
    Other,
}

fn info(data: &[u8]) -> Result<Info, NbdError> {
    let mut fields = Fields(data);
    let parsed = match fields.u16() {
        Some(wire::INFO_EXPORT) => fields
            .u64()
            .zip(fields.u16())
            .map(|(a, b)| Info::Export(a, b)),
        Some(wire::INFO_BLOCK_SIZE) => {
            let (minimum, _, maximum) = (fields.u32(), fields.u32(), fields.u32());
            let sizes = minimum.zip(maximum);
            sizes.map(|(minimum, maximum)| Info::Sizes(BlockSizes { minimum, maximum }))
        }
        Some(_) => return Ok(Info::Other),
        None => None,
    };
    let whole = parsed.filter(|_| fields.0.is_empty());
    whole.ok_or_else(|| NbdError::Protocol("information of a wrong length".to_owned()))
}

/// The old way, which reports a missing export by the end of the connection.
fn by_export_name(
    link: &mut Link,
    name: &[u8],
    structured: bool,
    no_zeroes: bool,
) -> Result<Export, NbdError> {
    link.send(&wire::option(wire::OPT_EXPORT_NAME, name))?;
    let answer: [u8; 10] = link.array().map_err(|error| match error {
        NbdError::Lost(_) => NbdError::Refused(format!(
            "the NBD server has no export {:?}, or refuses it",
            shown(name)
        )),
        other => other,
    })?;
    if !no_zeroes {
        link.array::<EXPORT_NAME_ZEROS>()?;
    }
    let mut fields = Fields(&answer);
    let (size, flags) = (fields.u64(), fields.u16());
    let found = (size.unwrap_or_default(), flags.unwrap_or_default());
    Export::new(found, None, structured)
}

/// Why the server refuses an export; of one that does not exist, with the names of others.
fn refusal(link: &mut Link, name: &[u8], reply: &OptionReply) -> NbdError {
    let what = format!("export {:?}", shown(name));
    let mut why = match reply.kind {
        wire::REP_ERR_TLS_REQD => return needs_tls(),
        wire::REP_ERR_UNKNOWN => format!("the NBD server has no {what}"),
        wire::REP_ERR_POLICY => format!("the NBD server does not allow {what}"),
        wire::REP_ERR_SHUTDOWN => "the NBD server is shutting down".to_owned(),
        wire::REP_ERR_BLOCK_SIZE_REQD => {
            format!("the NBD server serves {what} in block sizes that it does not state")
        }
        wire::REP_ERR_INVALID => {
            format!("the NBD server does not understand the request for {what}")
        }
        wire::REP_ERR_PLATFORM => format!("the NBD server cannot serve {what} on its platform"),
        kind => format!("the NBD server refuses {what} by error {kind:#x}"),
    };
    if !reply.data.is_empty() {
        why = format!("{why}: {}", shown(&reply.data));
    }
    if reply.kind == wire::REP_ERR_UNKNOWN
        && let Ok(names) = list(link)
    {
        why = format!("{why}; {names}");
    }
    NbdError::Refused(why)
}

/// The exports that the server lists, as a text.
fn list(link: &mut Link) -> Result<String, NbdError> {
    link.send(&wire::option(wire::OPT_LIST, &[]))?;
    let mut names: Vec<String> = Vec::new();
    let mut count = 0;
    for _ in 0..REPLIES_MAX {
        let reply = reply_to(link, wire::OPT_LIST)?;
        match reply.kind {
            wire::REP_SERVER => {
                let mut fields = Fields(&reply.data);
                let len = fields.u32().unwrap_or_default() as usize;
                let name = fields.take(len);
                let name =
                    name.ok_or_else(|| NbdError::Protocol("a name of wrong length".to_owned()))?;
                count += 1;
                if names.len() < LISTED {
                    names.push(format!("{:?}", shown(name)));
                }
            }
            wire::REP_ACK if count == 0 => return Ok("it lists none".to_owned()),
            wire::REP_ACK => {
                let more = count - names.len();
                let others = if more > 0 {
                    format!(" and {more} others")
                } else {
                    String::new()
                };
                return Ok(format!("it has {}{others}", names.join(", ")));
            }
            kind => return Err(unexpected(kind)),
        }
    }
    Err(too_many())
}
