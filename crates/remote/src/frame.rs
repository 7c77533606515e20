//! Frames: a length of 4 bytes, then the content.

use std::io::{self, Read, Write};

use steadfs_vfs::{FsError, Result};

use crate::Call;
use crate::codec::Encoder;

/// Longest content in bytes: a transfer of 1 MiB with its description, or a batch of names.
pub const LEN_MAX: usize = 4 << 20;

/// Bytes of the length.
const HEAD: usize = 4;

/// Fails for a call whose arguments are too long for a frame.
pub fn check(call: Call, arguments: usize) -> Result<()> {
    match (arguments < LEN_MAX, call) {
        (true, _) => Ok(()),
        (false, Call::Setxattr | Call::Write) => Err(FsError::TooBig),
        (false, _) => Err(FsError::NameTooLong),
    }
}

/// Appends a frame whose content `encode` appends. A frame that is too long is not appended.
pub fn push<T>(frames: &mut Vec<u8>, encode: impl FnOnce(&mut Encoder) -> T) -> io::Result<T> {
    let start = frames.len();
    let mut to = Encoder(std::mem::take(frames));
    to.0.extend([0; HEAD]);
    let encoded = encode(&mut to);
    *frames = to.0;
    let len = frames.len() - start - HEAD;
    let Some(word) = u32::try_from(len).ok().filter(|_| len <= LEN_MAX) else {
        frames.truncate(start);
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the frame is too long",
        ));
    };
    frames[start..start + HEAD].copy_from_slice(&word.to_le_bytes());
    Ok(encoded)
}

/// Sends a frame, by one call: each call wakes the receiver.
pub fn send(stream: &mut impl Write, content: &[u8]) -> io::Result<()> {
    let mut frame = Vec::new();
    push(&mut frame, |to| to.0.extend(content))?;
    stream.write_all(&frame)
}

/// Receives a frame; `None` at the end of the stream.
pub fn receive(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    Ok(receive_into(stream, &mut content)?.then_some(content))
}

/// Receives a frame in place of what is in `content`, whose memory is used again; false at the end of the stream.
pub fn receive_into(stream: &mut impl Read, content: &mut Vec<u8>) -> io::Result<bool> {
    let mut len = [0; HEAD];
    match stream.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
    if len > LEN_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the frame is too long",
        ));
    }
    content.resize(len, 0);
    stream.read_exact(content)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_follow_each_other_and_replace_what_was_received() {
        let mut frames = Vec::new();
        for content in [&b"longer"[..], b"", b"one"] {
            push(&mut frames, |to| to.0.extend(content)).unwrap();
        }
        let too_long = push(&mut frames, |to| to.0.resize(to.0.len() + LEN_MAX + 1, 0));
        assert_eq!(too_long.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let (mut stream, mut content) = (&frames[..], b"before".to_vec());
        for expected in [&b"longer"[..], b"", b"one"] {
            assert!(receive_into(&mut stream, &mut content).unwrap());
            assert_eq!(content, expected);
        }
        assert!(!receive_into(&mut stream, &mut content).unwrap());
    }
}
