use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// Buffers that each thread allocates, and how many of them it has at most: fewer where Miri interprets the test.
const THREAD_BUFS: (u64, usize) = if cfg!(miri) { (60, 10) } else { (100_000, 200) };
/// Buffers of each length that are compared with each other.
const COMPARED_BUFS: usize = if cfg!(miri) { 2 } else { 9 };

#[test]
fn a_shared_buffer_is_copied_before_it_changes() {
    let mut a = Buf::copy_of(b"one");
    let b = a.clone();
    assert!(a.same(&b) && a.is_shared());
    a.make_mut()[0] = b'O';
    assert_eq!(&a[..], b"One");
    assert_eq!(&b[..], b"one");
    assert!(!a.same(&b));
}

#[test]
fn an_unshared_buffer_changes_in_place() {
    let mut a = Buf::zeroed(4096);
    let at = a.as_ptr();
    a.make_mut()[4095] = 7;
    assert_eq!(a.as_ptr(), at);
    assert_eq!(a[4095], 7);
}

#[test]
fn buffers_are_aligned_and_zeroed_and_apart() {
    let mut held: Vec<Buf> = Vec::new();
    let zeros = vec![0; 3 << 20];
    for round in 0..3u8 {
        for len in [
            1,
            511,
            512,
            513,
            1024,
            3000,
            4096,
            65536,
            1 << 20,
            (1 << 20) + 1,
            3 << 20,
        ] {
            for _ in 0..COMPARED_BUFS {
                let mut buf = Buf::zeroed(len);
                let unit = len.next_power_of_two().min(ALIGN_BYTES);
                assert_eq!(buf.as_ptr() as usize % unit, 0, "{len} bytes");
                assert!(buf[..] == zeros[..len]);
                buf.make_mut().fill(round + 1);
                held.push(buf);
            }
        }
        let mut ranges: Vec<_> = held.iter().map(|b| b.as_ptr_range()).collect();
        ranges.sort_by_key(|r| r.start);
        assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start));
        let mut keep = false;
        held.retain(|_| {
            keep = !keep;
            keep
        });
    }
}

#[test]
fn with_bytes_and_copy_of_hold_what_they_are_given() {
    for i in 0..100u8 {
        assert_eq!(Buf::with_bytes(4096, |b| b.fill(i))[..], [i; 4096]);
        assert_eq!(Buf::copy_of(&[i; 100])[..], [i; 100]);
    }
    let two = [Buf::copy_of(b"ab"), Buf::copy_of(b"cde")];
    assert_eq!(Buf::concatenated(&two)[..], *b"abcde");
}

/// Threads that allocate, mark, pass on and free buffers: each buffer has one owner.
#[test]
fn threads_never_share_a_slot() {
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let shelf: Vec<_> = (0..64)
        .map(|_| steadfs_rt::Mutex::new(steadfs_rt::Rank::Leaf, None::<(Buf, u64)>))
        .collect();
    let shelf = Arc::new(shelf);
    let tasks: Vec<_> = (0..4u64)
        .map(|task| {
            let shelf = Arc::clone(&shelf);
            steadfs_rt::spawn("owner", move || {
                let mut own: Vec<(Buf, u64)> = Vec::new();
                let mut random = task + 1;
                for i in 0..THREAD_BUFS.0 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let mark = task << 32 | i;
                    let len = [512, 4096, 16384][(random % 3) as usize];
                    let buf = Buf::with_bytes(len, |bytes| {
                        bytes[..8].copy_from_slice(&mark.to_le_bytes());
                        bytes[len - 8..].copy_from_slice(&mark.to_le_bytes());
                    });
                    own.push((buf, mark));
                    let slot = &shelf[(random >> 8) as usize % shelf.len()];
                    let given = slot
                        .lock()
                        .replace(own.swap_remove(random as usize % own.len()));
                    own.extend(given);
                    if own.len() > THREAD_BUFS.1 {
                        for (buf, mark) in own.drain(..) {
                            assert_eq!(buf[..8], mark.to_le_bytes());
                            assert_eq!(buf[buf.len() - 8..], mark.to_le_bytes());
                            PASSED.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.join();
    }
    assert!(PASSED.load(Ordering::Relaxed) > 0);
}

#[test]
fn contiguous_buffers_are_one_run() {
    let mut bufs: Vec<Buf> = (0..200u8).map(|n| Buf::copy_of(&[n; 4096])).collect();
    bufs.sort_by_key(|buf| buf.as_ptr());
    bufs.remove(20);
    bufs.swap(50, 60);
    bufs.insert(70, Buf::copy_of(&[7; 3000]));
    bufs.insert(80, Buf::copy_of(&vec![8; 3 << 20]));
    bufs.push(Buf::copy_of(&[9; 512]));
    let runs = Buf::runs(&bufs);
    assert_eq!(runs.concat(), Buf::concatenated(&bufs)[..]);
    // Other tests allocate and free slots, too: some of these are contiguous.
    let joined = |run: &&[u8]| run.len() > 4096 && run.len() < 1 << 20;
    assert!(runs.iter().any(joined));
    assert!(Buf::runs(&[]).is_empty());
}

/// Whether the mapping of an address has the advice for huge pages (`hg` in proc_pid_smaps(5)).
fn wants_huge_pages(address: usize) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        let parse = |word: &str| usize::from_str_radix(word, 16).ok();
        if let Some((start, end)) = range.and_then(|(a, b)| parse(a).zip(parse(b))) {
            inside = (start..end).contains(&address);
        }
        if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split_whitespace().any(|flag| flag == "hg");
        }
    }
    panic!("{address:x} is mapped");
}

#[test]
fn buffers_of_streams_are_in_huge_pages() {
    // A kernel without huge pages refuses the advice.
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    for len in [256 << 10, 512 << 10, 1 << 20] {
        // Also the first arena of its size, if other tests have not allocated it.
        let bufs: Vec<_> = (0..20).map(|_| Buf::to_fill(len)).collect();
        for buf in &bufs {
            assert!(wants_huge_pages(buf.as_ptr().addr()), "{len}");
        }
    }
}
