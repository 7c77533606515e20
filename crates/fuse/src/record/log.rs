//! The log of a mount, as its server writes it.
//!
//! **Problem.** The records of a mount have no end, and what they describe becomes durable by and by. **Rule.** The log has
//! [`SEGMENTS`] segments. Records go to the newest one. When it is full the next one begins, and a task syncs the volume:
//! then the records before that are of no use, and their segments are free. This is a redo log with checkpoints.
//!
//! A segment is freed only when every request that has a record in it is answered, because a successor may get the
//! request again: it must find that it was carried out, or the states from before it. Segments are freed in order.
//! Requests wait while [`LIVE_MAX`] segments are in use. One that has recorded what was before it may use one more, so that
//! it ends; another one is left for a successor.
//!
//! States are read under the lock of the log, so that their order in the log is that of their changes. Data of a large
//! write is copied without the lock, behind its head: a record that a kill leaves without its data is not acknowledged.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use steadfs_rt::{Condvar, Mutex, MutexGuard, Rank};
use steadfs_vfs::FsError;

use super::item::Item;
use super::layout::{
    Layout, RECORD_HEAD, RecordHead, SEGMENT_HEAD, SEGMENTS, segment_head, sum, write_at,
};
use super::read::{Answered, Found};

/// Segments in use while requests may begin.
pub(super) const LIVE_MAX: usize = 2;
/// Data up to this size is copied under the lock, in one call with its head.
const SMALL_DATA_BYTES: usize = 16 << 10;
/// Slots of one server, for the requests that it serves at a time.
const SLOTS_PER_SERVER: u64 = 1 << 16;

const _: () = assert!(
    LIVE_MAX + 2 == SEGMENTS,
    "one more for requests that have begun, and one for a successor"
);

/// What happens when nothing more can be recorded.
pub(super) type OnFailure = Box<dyn Fn(&str) + Send + Sync>;

/// A segment in use.
struct Segment {
    index: usize,
    number: u64,
    /// Where its next record will be, from its start.
    end: u64,
    /// Unanswered requests with their first record in it.
    requests: usize,
}

struct LogState {
    /// The segments in use, the oldest first; the last one is written.
    live: VecDeque<Segment>,
    /// Nothing is recorded any more.
    is_over: bool,
    free_slots: Vec<u64>,
    next_slot: u64,
}

impl LogState {
    fn newest(&mut self) -> &mut Segment {
        self.live.back_mut().expect("one segment is written")
    }
}

/// The log.
pub(super) struct Log {
    file: Arc<OwnedFd>,
    layout: Layout,
    state: Mutex<LogState>,
    /// The same as in the state, to be read under any lock.
    is_over: AtomicBool,
    /// A segment was freed, a request answered, or the log is over.
    changed: Condvar,
    /// A segment is full.
    full: Condvar,
    on_failure: OnFailure,
}

/// A request in service that has records, or will have.
pub(crate) struct Ticket {
    log: Arc<Log>,
    /// The number of its answer.
    slot: u64,
    /// Number of the segment with its first record.
    first: Option<u64>,
}

impl Ticket {
    pub(super) fn slot(&self) -> u64 {
        self.slot
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.log.state.lock();
        state.free_slots.push(self.slot);
        let Some(number) = self.first else { return };
        if let Some(at) = state.live.iter().position(|one| one.number == number) {
            state.live[at].requests -= 1;
            if at == 0 && state.live.len() > 1 {
                self.log.changed.notify_all();
            }
        }
    }
}

impl Log {
    /// An empty log in the file of a server that has left `found`, if there was one. What a request may still ask for is
    /// kept; everything that was recorded must be durable.
    ///
    /// # Errors
    /// Memory is short.
    pub(super) fn begin(
        file: Arc<OwnedFd>,
        layout: Layout,
        found: &Found,
        on_failure: OnFailure,
    ) -> Result<Arc<Self>, Errno> {
        let mut used = found.segments.clone();
        if used.len() == SEGMENTS {
            // The newest one has answers only, all of them: its server ended before it freed the others.
            let (index, _) = used.remove(0);
            write_at(&file, layout.segment(index), &[&[0; SEGMENT_HEAD as usize]])?;
        }
        let is_free = |index: &usize| used.iter().all(|(used, _)| used != index);
        let index = (0..SEGMENTS).find(is_free).unwrap_or_default();
        let number = used.last().map_or(1, |(_, number)| number + 1);
        let mut segment = Segment {
            index,
            number,
            end: SEGMENT_HEAD,
            requests: 0,
        };
        // It is valid when its answers are complete.
        if !found.answers.is_empty() {
            let body = encode_answers(&found.answers);
            segment.end += write_record(&file, layout, &segment, &body)?;
        }
        let start = layout.segment(index);
        write_at(&file, start, &[&segment_head(number)])?;
        for (index, _) in &used {
            write_at(
                &file,
                layout.segment(*index),
                &[&[0; SEGMENT_HEAD as usize]],
            )?;
        }
        let state = LogState {
            live: VecDeque::from([segment]),
            is_over: false,
            free_slots: Vec::new(),
            next_slot: number * SLOTS_PER_SERVER,
        };
        Ok(Arc::new(Self {
            file,
            layout,
            state: Mutex::new(Rank::Record, state),
            is_over: AtomicBool::new(false),
            changed: Condvar::new(),
            full: Condvar::new(),
            on_failure,
        }))
    }

    /// For a request that is about to be carried out.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        let mut state = self.state.lock();
        let slot = state.free_slots.pop().unwrap_or_else(|| {
            state.next_slot += 1;
            state.next_slot
        });
        drop(state);
        Ticket {
            log: Arc::clone(self),
            slot,
            first: None,
        }
    }

    /// Appends a record with the items that `items` reads under the lock, and for a last item without its bytes, these:
    /// `data`. `items` is called again if the record had to wait for space. A log that is over records nothing.
    pub(super) fn append(
        &self,
        ticket: &mut Ticket,
        data: &[u8],
        items: impl Fn(&mut Vec<u8>) -> Result<(), FsError>,
    ) {
        let data_sum = sum(data);
        let mut state = self.state.lock();
        let Some(body) = self.fit(&mut state, ticket.first.is_some(), data.len(), items) else {
            return;
        };
        let segment = state.newest();
        let head = RecordHead {
            segment: segment.number,
            body_len: body.len() as u32,
            data_len: data.len() as u32,
            body_sum: sum(&body),
            data_sum,
        };
        let at = self.layout.segment(segment.index) + segment.end;
        segment.end += (RECORD_HEAD + body.len() + data.len()) as u64;
        if ticket.first.is_none() {
            segment.requests += 1;
            ticket.first = Some(segment.number);
        }
        let (first, rest) = match data.len() {
            0..=SMALL_DATA_BYTES => (data, &[][..]),
            _ => (&[][..], data),
        };
        if let Err(errno) = write_at(&self.file, at, &[&head.encode(), &body, first]) {
            return self.fail(&mut state, &errno.to_string());
        }
        drop(state);
        let at = at + (RECORD_HEAD + body.len()) as u64;
        if !rest.is_empty()
            && let Err(errno) = write_at(&self.file, at, &[rest])
        {
            self.fail(&mut self.state.lock(), &errno.to_string());
        }
    }

    /// The body of a record for which the newest segment has space; `None`: the log is over.
    fn fit(
        &self,
        state: &mut MutexGuard<'_, LogState>,
        has_begun: bool,
        data_len: usize,
        items: impl Fn(&mut Vec<u8>) -> Result<(), FsError>,
    ) -> Option<Vec<u8>> {
        let live_max = LIVE_MAX + usize::from(has_begun);
        let mut body = Vec::with_capacity(512);
        while !state.is_over {
            body.clear();
            if let Err(error) = items(&mut body) {
                self.fail(state, &error.to_string());
                return None;
            }
            let len = (RECORD_HEAD + body.len() + data_len) as u64;
            assert!(
                SEGMENT_HEAD + len <= self.layout.segment_bytes,
                "a segment holds any request"
            );
            while !state.is_over && state.newest().end + len > self.layout.segment_bytes {
                if state.live.len() >= live_max {
                    self.changed.wait(state);
                    // The states may have changed.
                    break;
                }
                self.next_segment(state);
            }
            if !state.is_over && state.newest().end + len <= self.layout.segment_bytes {
                return Some(body);
            }
        }
        None
    }

    /// Begins the next segment.
    fn next_segment(&self, state: &mut LogState) {
        let is_free = |index: &usize| state.live.iter().all(|one| one.index != *index);
        let index = (0..SEGMENTS).find(is_free).expect("one is always free");
        let number = state.newest().number + 1;
        let head = segment_head(number);
        if let Err(errno) = write_at(&self.file, self.layout.segment(index), &[&head]) {
            return self.fail(state, &errno.to_string());
        }
        state.live.push_back(Segment {
            index,
            number,
            end: SEGMENT_HEAD,
            requests: 0,
        });
        self.full.notify_all();
    }

    /// Syncs the volume and frees segments until the log is over.
    pub(super) fn free_segments(&self, mut sync: impl FnMut() -> Result<(), FsError>) {
        let mut state = self.state.lock();
        loop {
            while !state.is_over && state.live.len() == 1 {
                self.full.wait_idle(&mut state);
            }
            if state.is_over {
                return;
            }
            let newest = state.newest().number;
            drop(state);
            let synced = sync();
            state = self.state.lock();
            if let Err(error) = synced {
                return self.fail(&mut state, &error.to_string());
            }
            while !state.is_over && state.live[0].number < newest {
                if state.live[0].requests > 0 {
                    self.changed.wait_idle(&mut state);
                    continue;
                }
                let start = self.layout.segment(state.live[0].index);
                if let Err(errno) = write_at(&self.file, start, &[&[0; SEGMENT_HEAD as usize]]) {
                    return self.fail(&mut state, &errno.to_string());
                }
                state.live.pop_front();
                self.changed.notify_all();
            }
        }
    }

    /// Makes everything durable that was done before, and drops its records: what follows needs none of them. The caller
    /// has no ticket with records.
    pub(super) fn barrier(&self) {
        let mut state = self.state.lock();
        while !state.is_over && state.live.len() >= LIVE_MAX {
            self.changed.wait(&mut state);
        }
        if state.is_over {
            return;
        }
        self.next_segment(&mut state);
        let number = state.newest().number;
        while !state.is_over && state.live[0].number < number {
            self.changed.wait(&mut state);
        }
    }

    /// Nothing is recorded any more: the server is about to end its service.
    pub(super) fn end(&self) {
        self.over(&mut self.state.lock());
    }

    /// Whether the log is over.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn fail(&self, state: &mut LogState, why: &str) {
        if !state.is_over {
            // Before the broker has its last word: see `Standby::update`.
            self.over(state);
            (self.on_failure)(why);
        }
    }

    /// See [`OnFailure`].
    pub(super) fn fail_because(&self, why: &str) {
        self.fail(&mut self.state.lock(), why);
    }

    fn over(&self, state: &mut LogState) {
        state.is_over = true;
        self.is_over.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        self.full.notify_all();
    }
}

/// Writes a record without data; returns its length.
fn write_record(
    file: impl AsFd,
    layout: Layout,
    segment: &Segment,
    body: &[u8],
) -> Result<u64, Errno> {
    let head = RecordHead {
        segment: segment.number,
        body_len: body.len() as u32,
        data_len: 0,
        body_sum: sum(body),
        data_sum: sum(&[]),
    };
    let at = layout.segment(segment.index) + segment.end;
    write_at(file, at, &[&head.encode(), body])?;
    Ok((RECORD_HEAD + body.len()) as u64)
}

fn encode_answers(answers: &[Answered]) -> Vec<u8> {
    let mut body = Vec::new();
    for answered in answers {
        let item = Item::Answer {
            slot: answered.slot,
            unique: answered.unique,
            reply: &answered.reply,
        };
        item.encode(&mut body);
    }
    body
}
