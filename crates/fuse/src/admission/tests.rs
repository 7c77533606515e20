use steadfs_rt::Random;

use super::*;

const THREADS: usize = 128;
/// No caller is killed.
fn admission(threads: usize) -> Admission {
    Admission::new(threads, |_| false)
}

/// A request that waits in a thread of its own.
struct Wait(Arc<Event<Verdict>>);

fn enter(admission: &Admission, class: Class, user: u32, unique: u64) -> Result<Slot, Wait> {
    let event = Arc::new(Event::new());
    let header = InHeader {
        unique,
        pid: user,
        ..InHeader::default()
    };
    let queued = || Queued::of(&header, Waiter::Thread(event.clone()));
    admission
        .enter(class, user, queued)
        .ok_or(Wait(event.clone()))
}

/// Fills a class with one user's requests; returns the slots and the waiting requests.
fn crowd(admission: &Admission, class: Class, user: u32) -> (Vec<Slot>, Vec<Wait>) {
    let (mut slots, mut waits) = (Vec::new(), Vec::new());
    for unique in 0..1000 {
        match enter(admission, class, user, unique) {
            Ok(slot) => slots.push(slot),
            Err(wait) => waits.push(wait),
        }
    }
    (slots, waits)
}

#[test]
fn long_requests_of_one_user_leave_slots_for_short_requests_and_other_users() {
    let admission = admission(THREADS);
    let (bulk, _) = crowd(&admission, Class::Bulk, 1000);
    let (io, _) = crowd(&admission, Class::Io, 1000);
    let (short, _) = crowd(&admission, Class::Short, 1000);
    assert_eq!((bulk.len(), io.len(), short.len()), (8, 64, 32));
    for class in Class::ALL {
        assert!(enter(&admission, class, 0, 1).is_ok(), "{class:?}");
    }
}

/// Whatever waits, its user can read what it waits for.
#[test]
fn control_files_have_a_class_of_their_own() {
    let admission = admission(THREADS);
    for class in [Class::Short, Class::Change, Class::Io, Class::Bulk] {
        let (slots, waits) = crowd(&admission, class, 1000);
        assert!(!slots.is_empty() && !waits.is_empty());
    }
    assert!(enter(&admission, Class::Control, 1000, 1).is_ok());
    let class_of = |opcode, nodeid| {
        let header = InHeader {
            opcode,
            nodeid,
            ..InHeader::default()
        };
        let raw = RawRequest {
            header,
            op: &[],
            payload: &[],
        };
        Class::of(&raw, |node| node == 7)
    };
    for opcode in [
        op::LOOKUP,
        op::OPEN,
        op::READ,
        op::WRITE,
        op::READDIR,
        op::IOCTL,
    ] {
        assert_eq!(class_of(opcode, 7), Some(Class::Control));
        assert_ne!(class_of(opcode, 8), Some(Class::Control));
    }
    assert_eq!(class_of(op::INTERRUPT, 7), None);
}

#[test]
fn every_class_of_every_user_fits_the_threads_there_are() {
    for threads in 1..300 {
        let admission = admission(threads);
        let mut in_service = 0;
        for class in Class::ALL {
            for user in 0..300 {
                in_service += usize::from(enter(&admission, class, user, 1).is_ok());
            }
        }
        assert_eq!(in_service, max_in_service(threads));
        admission.follow_threads(3);
    }
    let admission = admission(THREADS);
    assert!(!admission.follow_threads(20));
    let served: usize = Class::ALL
        .map(|class| crowd(&admission, class, 1).0.len())
        .iter()
        .sum();
    assert!((CLASSES..20).contains(&served), "{served}");
    assert!(admission.follow_threads(max_in_service(THREADS) + 1));
    let limits = admission.state.lock().limits;
    assert_eq!(limits, Limits::of(THREADS));
}

#[test]
fn new_slots_go_to_requests_that_wait() {
    let admission = admission(THREADS);
    admission.follow_threads(9);
    let (slots, waits) = crowd(&admission, Class::Io, 1);
    assert!(admission.next_waiting().is_none());
    admission.follow_threads(usize::MAX);
    while let Some(waiting) = admission.next_waiting() {
        admission.serve(waiting);
    }
    let is_served = |wait: &&Wait| matches!(wait.0.get(), Some(Verdict::Admitted { .. }));
    let served = waits.iter().take_while(is_served).count();
    assert_eq!(slots.len() + served, admission.io_slots());
    assert!(waits.iter().skip(served).all(|wait| wait.0.get().is_none()));
}

#[test]
fn an_interrupt_that_comes_before_its_request_is_queued_is_not_lost() {
    let admission = Admission::new(THREADS, |pid| pid == 7);
    let interrupts = crate::interrupt::Interrupts::new();
    let interrupt = || interrupts.interrupt(5000, || admission.interrupt(5000));
    let (_slots, _waits) = crowd(&admission, Class::Bulk, 7);
    interrupt();
    let wait = enter(&admission, Class::Bulk, 7, 5000).err().unwrap();
    assert!(wait.0.get().is_none());
    assert!(interrupts.forget_early(5000));
    interrupt();
    assert!(matches!(wait.0.get(), Some(Verdict::Interrupted)));
    // Queued between the search of the queue and that of the threads.
    let late = std::cell::OnceCell::new();
    interrupts.interrupt(6000, || {
        let found = admission.interrupt(6000);
        late.get_or_init(|| enter(&admission, Class::Bulk, 7, 6000).err().unwrap());
        found
    });
    let verdict = late.get().and_then(|wait| wait.0.get());
    assert!(matches!(verdict, Some(Verdict::Interrupted)));
    assert!(!interrupts.forget_early(6000));
}

#[test]
fn a_free_slot_goes_to_the_user_with_fewest_in_service() {
    let admission = admission(THREADS);
    let (mut slots, waits) = crowd(&admission, Class::Io, 1000);
    let mut few: Vec<_> = (0..40)
        .map(|n| enter(&admission, Class::Io, 1001, n))
        .collect();
    let waiting: Vec<_> = few.extract_if(.., |entered| entered.is_err()).collect();
    assert!(few.len() >= NEWCOMER_REQUESTS_MAX && !waiting.is_empty());
    // The newcomer's first requests took slots reserved for newcomers.
    for _ in 0..=few.len() {
        admission.leave(slots.pop().unwrap());
    }
    let served = |wait: &Wait| matches!(wait.0.get(), Some(Verdict::Admitted { .. }));
    let of_others = waiting.iter().flat_map(|entered| entered.as_ref().err());
    assert_eq!(of_others.filter(|wait| served(wait)).count(), 1);
    assert_eq!(waits.iter().filter(|wait| served(wait)).count(), 0);
}

#[test]
fn a_queued_request_whose_caller_is_killed_is_answered() {
    let admission = Admission::new(THREADS, |pid| pid == 7);
    let (slots, waits) = crowd(&admission, Class::Bulk, 7);
    let first = u64::try_from(slots.len()).unwrap();
    assert!(!admission.interrupt(5000), "not queued");
    assert!(admission.interrupt(first));
    assert!(matches!(waits[0].0.get(), Some(Verdict::Interrupted)));
    admission.close();
    let ended = |wait: &Wait| matches!(wait.0.get(), Some(Verdict::Interrupted));
    assert!(waits.iter().all(ended));
}

/// The kernel sends no INTERRUPT for SIGKILL if another signal came before.
#[test]
fn a_caller_that_is_killed_after_another_signal_does_not_wait() {
    static KILLED: AtomicUsize = AtomicUsize::new(0);
    let admission = Admission::new(THREADS, |pid| pid == 7 && KILLED.load(Ordering::SeqCst) > 0);
    let (mut slots, waits) = crowd(&admission, Class::Bulk, 7);
    let first = u64::try_from(slots.len()).unwrap();
    for unique in [first, first + 2] {
        assert!(admission.interrupt(unique));
    }
    assert!(admission.begin_watch() && !admission.begin_watch());
    assert!(admission.end_killed());
    assert!(waits.iter().all(|wait| wait.0.get().is_none()));
    // The first two get a slot before the kill.
    for interrupted in [true, false] {
        admission.leave(slots.pop().unwrap());
        let at = usize::from(!interrupted);
        let verdict = waits[at].0.get();
        let is_admitted =
            |v| matches!(v, Verdict::Admitted { interrupted: was, .. } if was == interrupted);
        assert!(verdict.is_some_and(is_admitted), "{verdict:?}");
    }
    KILLED.store(1, Ordering::SeqCst);
    assert!(admission.end_killed() && !admission.end_killed());
    assert!(matches!(waits[2].0.get(), Some(Verdict::Interrupted)));
    // Without a watch the next free slot ends the wait, and the request behind it gets the slot.
    KILLED.store(0, Ordering::SeqCst);
    assert!(admission.interrupt(first + 3) && admission.begin_watch());
    KILLED.store(1, Ordering::SeqCst);
    admission.leave(slots.pop().unwrap());
    assert!(matches!(waits[3].0.get(), Some(Verdict::Interrupted)));
    assert!(matches!(waits[4].0.get(), Some(Verdict::Admitted { .. })));
}

#[test]
fn every_queued_request_is_served() {
    let mut random = Random::new(7);
    let admission = admission(16);
    let mut here: Vec<Slot> = Vec::new();
    let mut waits: Vec<Wait> = Vec::new();
    let collect = |waits: &mut Vec<Wait>, here: &mut Vec<Slot>| {
        waits.retain(|wait| match wait.0.get() {
            Some(Verdict::Admitted { slot, .. }) => {
                here.push(slot);
                false
            }
            _ => true,
        });
    };
    for unique in 0..20_000 {
        let class = Class::ALL[random.below(CLASSES)];
        match enter(&admission, class, random.below(4) as u32, unique) {
            Ok(slot) => here.push(slot),
            Err(wait) => waits.push(wait),
        }
        while here.len() > random.below(20) {
            let at = random.below(here.len());
            admission.leave(here.swap_remove(at));
            collect(&mut waits, &mut here);
        }
    }
    while let Some(slot) = here.pop() {
        admission.leave(slot);
        collect(&mut waits, &mut here);
    }
    assert!(
        waits.is_empty(),
        "{} requests are never served",
        waits.len()
    );
    assert_eq!(admission.queued.load(Ordering::Relaxed), 0);
    assert!(admission.state.lock().users.iter().all(BTreeMap::is_empty));
}

#[test]
fn nothing_is_kept_of_a_user_whose_queued_requests_were_interrupted() {
    let admission = Admission::new(THREADS, |_| true);
    let (_slots, _waits) = crowd(&admission, Class::Io, 0);
    let mut interrupted = 0;
    for user in 1..1000 {
        let unique = 10_000 + u64::from(user);
        if enter(&admission, Class::Io, user, unique).is_err() {
            assert!(admission.interrupt(unique));
            interrupted += 1;
        }
    }
    let state = admission.state.lock();
    let users = &state.users[Class::Io as usize];
    assert!(interrupted > 900, "{interrupted}");
    assert_eq!(users.len(), 1000 - interrupted);
}
