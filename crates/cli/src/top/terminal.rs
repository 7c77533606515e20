//! The terminal: keys, signals, and its state, which is restored however the program ends.
//!
//! A panic restores it in the hook that `ratatui` puts before the one that ends the program, a signal in the thread that
//! receives it ([`end_by_signal`]): the main thread may be inside a call that does not return.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::disable_raw_mode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::iterator::Signals;
use steadfs_rt::{Mutex, Rank, now, sleep, try_spawn};

use super::Watched;
use super::screen::{View, draw};
use crate::args;
use crate::failure::{Failure, code};
use crate::signals::catch_signals;

/// Attempts, 10 ms apart, to restore the terminal while no frame is drawn. A terminal that is stopped (Ctrl-S) blocks a frame.
const ATTEMPTS: u32 = 20;

pub(super) fn run(watched: &mut Watched, args: &args::Top) -> Result<(), Failure> {
    let drawing = Arc::new(Mutex::new(Rank::Leaf, ()));
    let signals = catch_signals().map_err(|error| Failure::new(code::SYSTEM, error))?;
    let ends = Arc::clone(&drawing);
    let waiting = try_spawn("top-signals", move || end_by_signal(signals, &ends));
    // The thread ends with the process.
    drop(
        waiting.map_err(|error| {
            Failure::new(code::SYSTEM, format!("cannot create a thread: {error}"))
        })?,
    );
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let done = show(watched, args, &mut terminal, &drawing);
    ratatui::try_restore().map_err(failed)?;
    done
}

fn failed(error: io::Error) -> Failure {
    Failure::new(code::FAILED, format!("terminal: {error}"))
}

/// Waits for a signal, restores the terminal, and ends the process by the signal.
fn end_by_signal(mut signals: Signals, drawing: &Mutex<()>) {
    let Some(signal) = signals.forever().next() else {
        return;
    };
    let mut guard = None;
    for _ in 0..ATTEMPTS {
        guard = drawing.try_lock();
        if guard.is_some() {
            break;
        }
        sleep(Duration::from_millis(10));
    }
    // They fail if the terminal is gone.
    let _ = match guard {
        Some(_) => ratatui::try_restore().and_then(|()| execute!(io::stdout(), Show)),
        // A terminal that takes no output would keep the process.
        None => disable_raw_mode(),
    };
    // Returns only for a signal whose default action is not to terminate.
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    drop(guard);
}

fn show(
    watched: &mut Watched,
    args: &args::Top,
    terminal: &mut DefaultTerminal,
    drawing: &Mutex<()>,
) -> Result<(), Failure> {
    let mut view = View::default();
    let mut left = args.count;
    loop {
        if !view.paused {
            view.rows = watched.read()?;
            view.time = super::time();
        }
        let next = now() + args.interval;
        loop {
            let guard = drawing.lock();
            terminal.draw(|frame| draw(frame, &view)).map_err(failed)?;
            drop(guard);
            // A resized terminal is drawn again.
            if let Some(Event::Key(key)) = wait(next.since(now())).map_err(failed)?
                && key.kind != KeyEventKind::Release
                && !obey(key, &mut view)
            {
                return Ok(());
            }
            if now() >= next {
                break;
            }
        }
        left = left.map(|left| left.saturating_sub(1));
        if left == Some(0) || watched.is_over() {
            return Ok(());
        }
    }
}

/// Interval in which a change of the terminal's size is noticed.
const LOOK: Duration = Duration::from_millis(100);

/// An event within `time`, or within [`LOOK`].
///
/// # Errors
/// The terminal is gone. `event::poll` would loop then and never return.
fn wait(time: Duration) -> io::Result<Option<Event>> {
    for time in [Duration::ZERO, time.min(LOOK)] {
        let stdin = io::stdin();
        let mut input = [PollFd::new(&stdin, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        };
        match poll(&mut input, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if input[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::ERR)
        {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if event::poll(Duration::ZERO)? {
            return event::read().map(Some);
        }
    }
    Ok(None)
}

/// Does what a key asks for; returns false if that is to quit.
fn obey(key: KeyEvent, view: &mut View) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        // In raw mode the terminal sends no signal.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('p') => view.paused = !view.paused,
        KeyCode::Up => view.choose(-1),
        KeyCode::Down => view.choose(1),
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_quit_and_pause() {
        let mut view = View::default();
        let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
        assert!(obey(key(KeyCode::Char('p')), &mut view) && view.paused);
        assert!(obey(key(KeyCode::Char('p')), &mut view) && !view.paused);
        assert!(obey(key(KeyCode::Down), &mut view));
        assert!(obey(key(KeyCode::Char('c')), &mut view));
        assert!(!obey(key(KeyCode::Char('q')), &mut view));
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!obey(ctrl_c, &mut view));
    }
}
