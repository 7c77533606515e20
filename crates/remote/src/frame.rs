//! Frames: a length of 4 bytes, then the content.

use std::io::{self, Read, Write};

/// Longest content in bytes: a transfer of 1 MiB with its description, or a batch of names.
pub const LEN_MAX: usize = 4 << 20;

/// Appends a frame with this content.
pub fn push(frames: &mut Vec<u8>, content: &[&[u8]]) -> io::Result<()> {
    let len: usize = content.iter().map(|part| part.len()).sum();
    let Some(word) = u32::try_from(len).ok().filter(|_| len <= LEN_MAX) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the frame is too long",
        ));
    };
    frames.reserve(word.to_le_bytes().len() + len);
    frames.extend(word.to_le_bytes());
    for part in content {
        frames.extend(*part);
    }
    Ok(())
}

/// Sends a frame, by one call: each call wakes the receiver.
pub fn send(stream: &mut impl Write, content: &[u8]) -> io::Result<()> {
    let mut frame = Vec::new();
    push(&mut frame, &[content])?;
    stream.write_all(&frame)
}

/// Receives a frame; `None` at the end of the stream.
pub fn receive(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let len = usize::try_from(u32::from_le_bytes(len)).unwrap_or(usize::MAX);
    if len > LEN_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the frame is too long",
        ));
    }
    let mut content = vec![0; len];
    stream.read_exact(&mut content)?;
    Ok(Some(content))
}
