//! Requests of the FUSE protocol: decoded, dispatched and answered over a volume in memory.
//!
//! The node ids and lookup counts are those that a kernel would use, since it is trusted; everything else of a request
//! comes from the input. A request is eight bytes, then as many as its last one says.

use std::sync::Arc;

use steadfs_fuse::reply::Answer;
use steadfs_fuse::wire::{self, OPCODES, ROOT_ID, opcode as op};
use steadfs_vfs::FileSystem;

use super::input::Input;
use crate::hostile::exercise::Trial;
use crate::raw_fuse::{REQUEST_BYTES_MAX, RawClient};

/// Most requests of an input.
const REQUESTS_MAX: usize = 64;

const NAMES: [&[u8]; 16] = [
    b"small\0",
    b"large\0",
    b"many\0",
    b".steadfs\0",
    b"options\0",
    b"sync\0",
    b"io\0",
    b"new\0",
    b"other\0",
    b"user.a\0",
    b"system.posix_acl_access\0",
    b"security.capability\0",
    b"\0",
    b"..\0",
    b"no end",
    &[b'n'; 4096],
];

/// A connection, and the nodes whose lookup count the kernel holds.
pub struct Connection<'a> {
    client: RawClient,
    trial: &'a mut Trial,
    nodes: Vec<u64>,
    /// An ioctl was sent, which may stop the volume.
    may_stop: bool,
}

impl<'a> Connection<'a> {
    /// Connects a volume and its control files, and sends INIT.
    pub fn new(fs: Arc<dyn FileSystem>, trial: &'a mut Trial) -> Self {
        Self {
            client: RawClient::connect(fs),
            trial,
            nodes: vec![ROOT_ID],
            may_stop: false,
        }
    }

    /// Sends the requests of `input`, then closes the volume; returns whether it must be clean.
    pub fn run(mut self, input: &mut Input<'_>) -> bool {
        for _ in 0..REQUESTS_MAX {
            if input.is_empty() {
                break;
            }
            self.request(input);
        }
        match self.client.close() {
            Ok(()) => true,
            Err(error) => {
                if !self.may_stop || error.to_string().contains(steadfs_rt::PANICKED) {
                    self.trial.violation(format!("unmount: {error}"));
                }
                false
            }
        }
    }

    fn node(&self, index: u8) -> u64 {
        self.nodes[usize::from(index) % self.nodes.len()]
    }

    fn request(&mut self, input: &mut Input<'_>) {
        let opcode = u32::from(input.byte()) % (OPCODES as u32 + 4);
        let node = self.node(input.byte());
        let other = self.node(input.byte());
        let name = NAMES[input.below(NAMES.len())];
        let new_name = NAMES[input.below(NAMES.len())];
        let shape = input.byte();
        let fill = input.byte();
        let given = usize::from(input.byte());
        let given = input.bytes(given);
        if matches!(opcode, op::FORGET | op::BATCH_FORGET) {
            return self.forget(opcode, fill);
        }
        let size = wire::op_size(opcode).unwrap_or(0);
        let mut body = given[..size.min(given.len())].to_vec();
        body.resize(size, 0);
        let data = &given[size.min(given.len())..];
        match shape % 8 {
            0..=3 => self.add_payload(opcode, &mut body, (name, new_name), data),
            4 => body.extend(name),
            5 => body.extend([name, new_name, data].concat()),
            // Too short.
            6 => body.truncate(usize::from(fill) % (size + 1)),
            _ => body.extend(vec![fill; given.len() << 9]),
        }
        set_node(opcode, &mut body, other);
        self.may_stop |= opcode == op::IOCTL;
        self.send(opcode, node, &body);
    }

    /// Names and data as the operation expects them.
    fn add_payload(
        &self,
        opcode: u32,
        body: &mut Vec<u8>,
        (name, new_name): (&[u8], &[u8]),
        data: &[u8],
    ) {
        match opcode {
            op::LOOKUP | op::UNLINK | op::RMDIR | op::MKNOD | op::MKDIR | op::LINK => {
                body.extend(name);
            }
            op::CREATE | op::GETXATTR | op::REMOVEXATTR => body.extend(name),
            op::SYMLINK | op::RENAME | op::RENAME2 => body.extend([name, new_name].concat()),
            op::SETXATTR => {
                put(body, 0, data.len());
                body.extend([name, data].concat());
            }
            op::WRITE => {
                put(body, 16, data.len());
                body.extend(data);
            }
            op::IOCTL => {
                put(body, 24, data.len());
                body.extend(data);
            }
            _ => body.extend(data),
        }
    }

    fn forget(&mut self, opcode: u32, index: u8) {
        if self.nodes.len() == 1 {
            return;
        }
        let index = 1 + usize::from(index) % (self.nodes.len() - 1);
        let node = self.nodes.swap_remove(index);
        match opcode {
            op::FORGET => self.send(opcode, node, &1_u64.to_le_bytes()),
            _ => self.send(opcode, 0, &[1, node, 1].map(u64::to_le_bytes).concat()),
        }
    }

    /// Sends a request, checks the reply, and keeps a node that it returns.
    fn send(&mut self, opcode: u32, node: u64, body: &[u8]) {
        let answer = self.client.send(opcode, node, body);
        if self.trial.trace {
            let name = wire::op_name(opcode);
            eprintln!(
                "{name} {node} {:?}: {answer:?}",
                &body[..body.len().min(64)]
            );
        }
        self.trial.charge(wire::op_name(opcode));
        let silent = wire::is_forget(opcode);
        if opcode != op::INTERRUPT && silent != (answer == Answer::Silent) {
            let name = wire::op_name(opcode);
            self.trial
                .violation(format!("{name} is answered {answer:?}"));
        }
        if answer == Answer::Done {
            self.check_reply(opcode, body);
        }
    }

    fn check_reply(&mut self, opcode: u32, body: &[u8]) {
        let word = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("four"));
        let limit = match opcode {
            op::READ | op::READDIR | op::READDIRPLUS => word(16) as usize,
            op::GETXATTR | op::LISTXATTR => (word(0) as usize).max(8),
            op::IOCTL => 16 + word(28) as usize,
            _ => REQUEST_BYTES_MAX as usize,
        };
        if self.client.out.len() > limit {
            let (name, len) = (wire::op_name(opcode), self.client.out.len());
            self.trial
                .violation(format!("{name}: {len} bytes are returned, limit {limit}"));
        }
        if let op::LOOKUP | op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK | op::CREATE = opcode
            && let Some(node) = self.client.node()
        {
            self.nodes.push(node);
        }
    }
}

/// Writes a length at its offset in a request.
fn put(body: &mut [u8], at: usize, len: usize) {
    let len = u32::try_from(len).expect("a short request");
    body[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// The second node of an operation that has one.
fn set_node(opcode: u32, body: &mut [u8], node: u64) {
    let at = match opcode {
        op::RENAME | op::RENAME2 | op::LINK => 0,
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => 16,
        _ => return,
    };
    if body.len() >= at + 8 {
        body[at..at + 8].copy_from_slice(&node.to_le_bytes());
    }
}
