//! The picture on the terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row as TableRow, Table};

use steadfs::tools::printable;

use super::rates::{Class, Row};
use crate::tree::human;

/// A smaller terminal shows only that it is too small.
pub(super) const WIDTH_MIN: u16 = 60;
pub(super) const HEIGHT_MIN: u16 = 12;

/// What is shown, and what the user has chosen.
#[derive(Default)]
pub(super) struct View {
    pub rows: Vec<Row>,
    /// The mount point of the chosen mount.
    pub chosen: String,
    pub paused: bool,
    pub time: String,
}

impl View {
    /// The index of the chosen mount: the first one if it is gone.
    pub fn chosen(&self) -> usize {
        let is = |row: &Row| row.mountpoint == self.chosen;
        self.rows.iter().position(is).unwrap_or(0)
    }

    /// Chooses the mount `steps` below.
    pub fn choose(&mut self, steps: isize) {
        let last = self.rows.len().saturating_sub(1);
        let at = self.chosen().saturating_add_signed(steps).min(last);
        if let Some(row) = self.rows.get(at) {
            self.chosen.clone_from(&row.mountpoint);
        }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!(
            "The terminal is too small: {WIDTH_MIN} columns and {HEIGHT_MIN} lines are needed."
        );
        let text = Paragraph::new(text).wrap(ratatui::widgets::Wrap { trim: true });
        return frame.render_widget(text, area);
    }
    let mounts = u16::try_from(view.rows.len()).unwrap_or(u16::MAX);
    // The half of the screen is for the chosen mount.
    let mounts = mounts.max(1).saturating_add(1).min(area.height / 2 - 1);
    let [title, table, details] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(mounts),
        Constraint::Min(0),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(headline(view)), title);
    draw_mounts(frame, view, table);
    let Some(row) = view.rows.get(view.chosen()) else {
        return frame.render_widget(Paragraph::new("No steadfs volume is mounted."), details);
    };
    let [fsyncs, waiting] =
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(details);
    draw_fsyncs(frame, row, fsyncs);
    draw_waiting(frame, row, waiting);
}

fn headline(view: &View) -> Line<'static> {
    let paused = if view.paused { "paused, " } else { "" };
    let style = Style::default().add_modifier(Modifier::BOLD);
    Line::styled(
        format!(
            "steadfs top  {} UTC ({paused}q: quit, arrows: mount, p: pause)",
            view.time
        ),
        style,
    )
}

const HEADS: [&str; 11] = [
    "MOUNTPOINT",
    "READ/s",
    "WRITE/s",
    "OPS/s",
    "FSYNC/s",
    "MEAN",
    "DIRTY",
    "QUEUE",
    "FREE LOG",
    "COMMIT",
    "BOOST",
];
/// Widths of the columns behind the first.
const WIDTHS: [u16; 10] = [7, 7, 7, 7, 7, 6, 5, 8, 6, 6];

fn draw_mounts(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let chosen = view.chosen();
    let visible = usize::from(area.height.saturating_sub(1)).max(1);
    let first = (chosen + 1).saturating_sub(visible);
    let rows = view.rows.iter().enumerate().skip(first).take(visible);
    let rows = rows.map(|(n, row)| {
        let style = match n == chosen {
            true => Style::default().add_modifier(Modifier::REVERSED),
            false => Style::default(),
        };
        TableRow::new(cells(row).map(Cell::from)).style(style)
    });
    let first = Constraint::Min(10);
    let widths = [first].into_iter().chain(WIDTHS.map(Constraint::Length));
    let head =
        TableRow::new(HEADS.map(Cell::from)).style(Style::default().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

/// The columns of a mount.
fn cells(row: &Row) -> [String; 11] {
    let mut cells = [const { String::new() }; 11];
    cells[0].clone_from(&row.label);
    let Some(activity) = &row.activity else {
        cells[1] = if row.state == "ok" {
            "…".to_owned()
        } else {
            row.state.to_owned()
        };
        return cells;
    };
    let mean = activity.fsync.mean_us.map(time);
    let values = [
        bytes(activity.read_bytes),
        bytes(activity.written_bytes),
        rate(activity.operations),
        rate(activity.fsync.count as f64 / activity.seconds),
        mean.unwrap_or_else(|| "-".to_owned()),
        bytes(activity.dirty_bytes as f64),
        (activity.queued + activity.in_flight).to_string(),
        activity
            .log_free_percent
            .map_or_else(|| "-".to_owned(), |free| format!("{free:.0}%")),
        rate(activity.commits),
        rate(activity.boosts),
    ];
    for (cell, value) in cells[1..].iter_mut().zip(values) {
        *cell = value;
    }
    cells
}

fn bytes(bytes: f64) -> String {
    // A float becomes the nearest whole number.
    human(bytes as u64).trim_start().to_owned()
}

fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.0}"),
    }
}

/// A time with its unit.
fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0}us"),
        us if us < 1e4 => format!("{:.1}ms", us / 1e3),
        us if us < 1e6 => format!("{:.0}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}

/// The fsync times of the chosen mount, and its figures that are no column.
fn draw_fsyncs(frame: &mut Frame<'_>, row: &Row, area: Rect) {
    let title = format!(" {}: {} ", row.label, describe(row));
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let mut lines = vec![Line::from(figures(row))];
    lines.extend(
        histogram(&row.recent, inner.width)
            .into_iter()
            .map(Line::from),
    );
    frame.render_widget(Paragraph::new(lines), inner);
}

/// The requests of the chosen mount that wait, those first that have waited for the longest time.
fn draw_waiting(frame: &mut Frame<'_>, row: &Row, area: Rect) {
    let block = Block::bordered().title(format!(" {} waiting ", row.waiting.len()));
    let rows = row.waiting.iter().map(|one| {
        let name = |name: &Option<String>| {
            name.as_ref()
                .map_or_else(|| "-".to_owned(), |name| printable(name.as_bytes()))
        };
        TableRow::new([
            one.pid.to_string(),
            name(&one.command),
            one.operation.clone(),
            one.inode.to_string(),
            one.steps.join(", "),
            time(one.milliseconds * 1e3),
            name(&one.cgroup),
        ])
    });
    let widths = [
        Constraint::Length(8),
        Constraint::Length(15),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(26),
        Constraint::Length(6),
        Constraint::Fill(1),
    ];
    let head = [
        "PID",
        "COMMAND",
        "OPERATION",
        "INODE",
        "STEP",
        "SINCE",
        "CGROUP",
    ];
    let head = TableRow::new(head).style(Style::default().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(head).block(block), area);
}

fn describe(row: &Row) -> String {
    match row.format {
        Some(format) => format!("{format}, {}", row.detail),
        None => row.detail.clone(),
    }
}

fn figures(row: &Row) -> String {
    let Some(activity) = &row.activity else {
        return String::new();
    };
    format!(
        "device: read {}/s, write {}/s, {} queued, {} in it; failed requests {}/s; merged {}/s",
        bytes(activity.device_read_bytes),
        bytes(activity.device_written_bytes),
        activity.queued,
        activity.in_flight,
        rate(activity.failed),
        rate(activity.merged),
    )
}

/// A line for each class of fsync times between the shortest and the longest, with a bar.
fn histogram(classes: &[Class], width: u16) -> Vec<String> {
    let used = |(_, count): &Class| *count > 0;
    let (Some(first), Some(last)) = (
        classes.iter().position(used),
        classes.iter().rposition(used),
    ) else {
        return vec!["no fsync in the last intervals".to_owned()];
    };
    let most = classes.iter().map(|(_, count)| *count).max().unwrap_or(1);
    let room = u64::from(width.saturating_sub(22));
    let mut lines = vec!["fsync times of the last intervals:".to_owned()];
    lines.extend(classes[first..=last].iter().map(|(end, count)| {
        let label = match end {
            Some(end) => format!("<= {}", time(*end as f64)),
            None => "longer".to_owned(),
        };
        let bar = (count * room).div_ceil(most);
        let bar = "█".repeat(usize::try_from(bar).unwrap_or(0));
        format!("{label:>10} {count:>8}  {bar}")
    }));
    lines
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::tests::{mount, sample};
    use super::super::rates::{Recent, Row};
    use super::super::sampler::Answer;
    use super::*;

    fn view() -> View {
        let mut recent = Recent::default();
        let row = |name: &str, answer: &Answer, recent: &mut Recent| {
            Row::of(&mount(name), Some(&sample(1, 100)), answer, recent)
        };
        View {
            rows: vec![
                row("/mnt", &sample(2, 400), &mut recent),
                row("/srv", &Answer::Silent, &mut Recent::default()),
            ],
            time: "2026-11-28 12:00:00".to_owned(),
            ..View::default()
        }
    }

    fn picture(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        // Spaces between columns depend on the width.
        let lines = terminal.backend().to_string();
        lines.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn mounts_and_the_histogram_of_the_chosen_one_are_shown() {
        let mut view = view();
        let shown = picture(&view, 110, 24);
        for part in [
            "steadfs top 2026-11-28 12:00:00 UTC (q: quit",
            "MOUNTPOINT",
            "/mnt 1.0M 0 300 300 700us 1.0M 6 25% 300 300",
            "/srv silent",
            "/mnt: ext4, ok ",
            "device: read 0/s, write 4.0K/s, 4 queued, 2 in it; failed requests 0/s; merged 0/s",
            "<= 1.0ms 300 ████",
            "1 waiting",
            "77 dd fsync 12 commit, device 1.2s /",
        ] {
            assert!(shown.contains(part), "{part}\n{shown}");
        }
        assert!(
            !shown.contains("500us"),
            "empty classes outside are left out\n{shown}"
        );
        view.choose(1);
        let shown = picture(&view, 110, 24);
        assert!(
            shown.contains("/srv: its server does not answer "),
            "{shown}"
        );
        assert!(shown.contains("no fsync in the last intervals"), "{shown}");
        view.choose(5);
        assert_eq!(view.chosen, "/srv");
        view.choose(-9);
        assert_eq!(view.chosen, "/mnt");
        view.paused = true;
        assert!(picture(&view, 110, 24).contains("(paused, q: quit"));
    }

    #[test]
    fn every_size_is_drawn() {
        let view = view();
        for (width, height) in [(1, 1), (20, 4), (59, 40), (60, 12), (300, 100)] {
            let shown = picture(&view, width, height);
            let too_small = width < WIDTH_MIN || height < HEIGHT_MIN;
            if width >= 20 {
                assert_eq!(shown.contains("needed"), too_small, "{shown}");
            }
        }
        let none = picture(&View::default(), 80, 24);
        assert!(none.contains("No steadfs volume is mounted."), "{none}");
    }

    #[test]
    fn the_chosen_one_of_many_mounts_is_visible() {
        let mut view = view();
        let mut recent = Recent::default();
        view.rows.extend((0..50).map(|n| {
            let mount = mount(&format!("/many/{n}"));
            Row::of(&mount, None, &sample(1, 1), &mut recent)
        }));
        view.choose(40);
        let shown = picture(&view, 80, 24);
        assert!(shown.contains("/many/38 "), "{shown}");
    }
}
