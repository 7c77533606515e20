//! Reports as one self-contained page.

use std::fmt::Write as _;

use super::chart::escaped;
use super::report::Report;
use super::text::{cell_rows, figure_rows};

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<title>steadfs lab</title><style>body{font-family:sans-serif;max-width:70em;margin:2em auto;\
padding:0 1em;line-height:1.4}table{border-collapse:collapse;margin:1em 0;font-size:90%}\
td,th{border-bottom:1px solid #ddd;padding:.2em .7em;text-align:right}\
td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}\
details{margin:.5em 0}</style></head><body>\n<h1>steadfs lab</h1>\n\
<p>Published experiments, run again with the real file-system code on modelled devices in virtual time. \
Every number that is ours is simulated; brackets are 95 % intervals over the seeds.</p>\n";

fn table(out: &mut String, rows: &[Vec<String>]) {
    out.push_str("<table>\n");
    for (number, row) in rows.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        out.push_str("<tr>");
        for cell in row {
            // Writing into a string does not fail.
            let _ = write!(out, "<{tag}>{}</{tag}>", escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

/// One page of all reports: tables and charts, nothing from elsewhere.
pub fn page(reports: &[Report]) -> String {
    let mut out = HEAD.to_owned();
    for report in reports {
        section(&mut out, report);
    }
    out.push_str("</body></html>\n");
    out
}

fn section(out: &mut String, report: &Report) {
    let scale = report.scale.as_ref();
    let scale = scale.map_or_else(String::new, |scale| format!(" Scaled down: {scale}."));
    let _ = writeln!(
        out,
        "<h2>{}</h2>\n<p>{} Device {}, {} seeds.{}</p>",
        escaped(&report.experiment),
        escaped(&report.title),
        escaped(&report.device),
        report.seeds,
        escaped(&scale)
    );
    if !report.figures.is_empty() {
        table(out, &figure_rows(&report.figures));
        for figure in &report.figures {
            if let Some(why) = &figure.why {
                let _ = writeln!(out, "<p>{}: {}</p>", escaped(&figure.what), escaped(why));
            }
        }
        out.push_str(&report.figures_chart());
    }
    if let Some(chart) = report.latency_chart() {
        out.push_str(&chart);
    }
    for cell in &report.cells {
        let (name, about) = (escaped(&cell.name), escaped(&cell.about));
        let _ = writeln!(
            out,
            "<details open><summary><b>{name}</b>: {about}</summary>"
        );
        table(out, &cell_rows(cell));
        out.push_str("</details>\n");
    }
    out.push_str("<ul>\n");
    for note in &report.notes {
        let _ = writeln!(out, "<li>{}</li>", escaped(note));
    }
    out.push_str("</ul>\n");
}
