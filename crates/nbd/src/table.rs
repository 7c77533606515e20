//! Bios and requests in flight.
//!
//! **Rule.** After a failed FLUSH nothing that makes durable succeeds any more, because the server may have dropped what it
//! had taken. After a lost connection every request fails. The layers above then stop the volume.

use std::collections::BTreeMap;

use steadfs_block::{Bio, Buf, Done, Op};

use crate::job::{Abilities, Job, Piece};
use crate::reply::Coverage;
use crate::wire::{FLAG_FUA, Kind};

/// A request that the server has not answered yet.
pub struct Command {
    /// Of its connection.
    pub connection: usize,
    job: u64,
    pub kind: Kind,
    /// A FLUSH, or a write with FUA.
    durable: bool,
    /// Where it begins within the bio.
    from: u64,
    /// First byte in the export.
    pub offset: u64,
    pub len: u32,
    /// A read: where its data goes.
    pub memory: Vec<Buf>,
    pub coverage: Coverage,
    /// Chunks of its reply so far.
    pub chunks: u32,
    pub error: Option<String>,
}

/// What is to be sent for a new request.
pub struct Issued {
    pub connection: usize,
    pub kind: Kind,
    pub flags: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u32,
    pub data: Vec<(Buf, std::ops::Range<usize>)>,
}

/// The state under the lock of a device.
#[derive(Default)]
pub struct Table {
    jobs: BTreeMap<u64, Job>,
    commands: BTreeMap<u64, Command>,
    /// Of jobs and requests.
    last_number: u64,
    /// Why every request fails.
    lost: Option<String>,
    /// Why every request that makes durable fails.
    flush_failed: Option<String>,
}

/// What follows from an answer.
pub enum Next {
    /// The bio goes on: pieces of it may be issued.
    Continues(u64),
    /// The bio has ended.
    Ended(Box<Job>),
    /// Other pieces of a failed bio are in flight.
    Waits,
}

impl Table {
    /// Takes a bio. An error gives it back, failed.
    pub fn add(&mut self, bio: Bio, done: Done, can: Abilities) -> Result<u64, Box<Job>> {
        let durable = bio.op == Op::Flush || bio.preflush || bio.fua;
        let mut job = Job::new(bio, done, can);
        let failed = self.flush_failed.as_ref().filter(|_| durable);
        if let Some(why) = self.lost.as_ref().or(failed) {
            job.fail(why);
        }
        if job.has_failed() || job.is_empty() {
            return Err(Box::new(job));
        }
        self.last_number += 1;
        self.jobs.insert(self.last_number, job);
        Ok(self.last_number)
    }

    /// The next request of a bio, if one may be sent now.
    pub fn issue(
        &mut self,
        number: u64,
        can: Abilities,
        (start, connections): (u64, usize),
        zeros: Option<&Buf>,
    ) -> Option<Issued> {
        if self.lost.is_some() {
            return None;
        }
        let job = self.jobs.get_mut(&number)?;
        let piece: Piece = job.next(can)?;
        self.last_number += 1;
        let cookie = self.last_number;
        let connection = (cookie % connections as u64) as usize;
        let offset = match piece.kind {
            Kind::Flush => 0,
            _ => start + job.bio.offset + piece.from,
        };
        let command = Command {
            connection,
            job: number,
            kind: piece.kind,
            durable: piece.kind == Kind::Flush || piece.flags & FLAG_FUA != 0,
            from: piece.from,
            offset,
            len: piece.len,
            memory: job.memory(&piece),
            coverage: Coverage::default(),
            chunks: 0,
            error: None,
        };
        self.commands.insert(cookie, command);
        Some(Issued {
            connection,
            kind: piece.kind,
            flags: piece.flags,
            cookie,
            offset,
            len: piece.len,
            data: job.data(&piece, zeros),
        })
    }

    /// Takes the request with this cookie, if it was sent on this connection.
    pub fn take(&mut self, connection: usize, cookie: u64) -> Option<Command> {
        let command = self.commands.remove(&cookie)?;
        if command.connection == connection {
            return Some(command);
        }
        self.commands.insert(cookie, command);
        None
    }

    /// Puts a request back of which more replies will follow.
    pub fn put_back(&mut self, cookie: u64, command: Command) {
        self.commands.insert(cookie, command);
    }

    /// A request has been answered, or will not be.
    pub fn end(&mut self, command: Command) -> Next {
        let number = command.job;
        let Some(job) = self.jobs.get_mut(&number) else {
            return Next::Waits;
        };
        let result = match command.error {
            None => Ok(()),
            Some(why) => Err(why),
        };
        if command.kind == Kind::Read {
            job.take_read(command.from, command.len, command.memory);
        }
        // A write with FUA is a FLUSH, too, to a server with a cache of its own.
        if let (true, Err(why)) = (command.durable, &result) {
            self.flush_failed
                .get_or_insert_with(|| format!("an earlier FLUSH failed: {why}"));
        }
        if !job.end_piece(result) {
            return match job.has_failed() {
                true => Next::Waits,
                false => Next::Continues(number),
            };
        }
        if job.next_step() {
            return Next::Continues(number);
        }
        match self.jobs.remove(&number) {
            Some(job) => Next::Ended(Box::new(job)),
            None => Next::Waits,
        }
    }

    /// From now on every request fails.
    pub fn lose(&mut self, why: &str) {
        self.lost.get_or_insert_with(|| why.to_owned());
    }

    /// Why every request fails.
    pub fn lost(&self) -> Option<String> {
        self.lost.clone()
    }

    /// The requests of a connection, which will not be answered.
    pub fn take_all(&mut self, connection: usize) -> Vec<Command> {
        let is_of_it = |(_, command): &(&u64, &Command)| command.connection == connection;
        let cookies: Vec<u64> = self
            .commands
            .iter()
            .filter(is_of_it)
            .map(|(n, _)| *n)
            .collect();
        let taken = cookies
            .iter()
            .filter_map(|cookie| self.commands.remove(cookie));
        taken.collect()
    }

    /// Bios of which nothing is in flight: a lost connection ended them between two requests.
    pub fn take_stranded(&mut self) -> Vec<Job> {
        let Some(why) = &self.lost else {
            return Vec::new();
        };
        let is_stranded = |(_, job): &(&u64, &Job)| !job.is_in_flight();
        let numbers: Vec<u64> = self
            .jobs
            .iter()
            .filter(is_stranded)
            .map(|(n, _)| *n)
            .collect();
        let failed = |number: &u64| {
            let mut job = self.jobs.remove(number)?;
            job.fail(why);
            Some(job)
        };
        numbers.iter().filter_map(failed).collect()
    }

    /// Whether no bio is in service.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }
}
