//! Reports as one self-contained page.

use std::fmt::Write as _;

use super::chart::escaped;
use super::report::{FigureReport, RealReport, Report};
use super::text::{cell_rows, estimate, figure_rows, real_rows, remarks};

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
<meta name=\"viewport\" content=\"width=device-width\"/><title>steadfs lab</title><style>\
body{font:16px/1.5 system-ui,sans-serif;color:#1c2733;background:#f6f7f9;margin:0}\
main{max-width:62em;margin:0 auto;padding:1.5em}\
header{background:#12304f;color:#fff}header>div{max-width:62em;margin:0 auto;padding:2em 1.5em}\
header h1{margin:0 0 .3em}header p{margin:.3em 0;max-width:48em}\
section{background:#fff;border:1px solid #e1e5ea;border-radius:8px;padding:.5em 1.5em 1em;margin:1.5em 0}\
h2{margin:.6em 0 .2em}h3{margin:1.4em 0 .3em}.lead{font-size:1.1em;margin:.2em 0}.fine{color:#5a6775;font-size:.9em}\
.wide{overflow-x:auto}table{border-collapse:collapse;margin:.6em 0;font-size:.88em}\
td,th{border-bottom:1px solid #e1e5ea;padding:.3em .8em;text-align:right;white-space:nowrap}\
th{background:#f0f3f6}td:first-child,th:first-child{text-align:left;white-space:normal;min-width:11em}\
svg{max-width:100%;height:auto;margin:.6em 0}\
details{margin:.4em 0;border-left:3px solid #cfd8e2;padding-left:.9em}summary{cursor:pointer}\
.good{color:#14713d}.off{color:#a33c00}a{color:#1f5fa8}dt{font-weight:bold}dd{margin:0 0 .5em 1em}\
</style></head><body>\n<header><div><h1>steadfs lab</h1>\n\
<p>Four mechanisms of Linux file systems were published with measurements on a phone, an SD card and an NVMe drive. Here \
the same experiments run again: the file-system code, cache and queue are the ones that a steadfs mount runs; the devices \
are models, and time is virtual.</p>\n</div></header>\n<main>\n";

const LEGEND: &str = "<section><h2>How to read this page</h2><dl>\
<dt>simulated</dt><dd>Every number that is ours, unless it says \"real\". Brackets are 95 % intervals over the seeds; the same \
program, device and seeds give the same page.</dd>\
<dt>calibrated</dt><dd>A figure that set a parameter of the device model: only figures without contention or without the \
mechanism did. Agreeing with it proves nothing.</dd>\
<dt>predicted</dt><dd>A figure that the model had not seen. Where ours is off by more than a quarter, it says why.</dd>\
<dt>aim</dt><dd>What steadfs wants to reach with all its mechanisms on; the published kernels did not have them together.</dd>\
</dl></section>\n";

fn table(out: &mut String, rows: &[Vec<String>]) {
    out.push_str("<div class=\"wide\"><table>\n");
    for (number, row) in rows.iter().enumerate() {
        let tag = if number == 0 { "th" } else { "td" };
        out.push_str("<tr>");
        for cell in row {
            // Writing to a string does not fail.
            let _ = write!(out, "<{tag}>{}</{tag}>", escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

/// One page of all reports: tables and charts, without external resources.
pub fn page(reports: &[Report]) -> String {
    let mut out = HEAD.to_owned();
    overview(&mut out, reports);
    out.push_str(LEGEND);
    for report in reports {
        section(&mut out, report);
    }
    out.push_str("</main></body></html>\n");
    out
}

/// Within a quarter of the published figure, or an aim that is reached.
fn is_good(figure: &FigureReport) -> bool {
    match figure.aim {
        true => figure.deviation.is_some_and(|off| off <= 0.0),
        false => figure.deviation.is_some_and(|off| off.abs() <= 0.25),
    }
}

fn overview(out: &mut String, reports: &[Report]) {
    out.push_str(
        "<section><h2>At a glance</h2>\n<div class=\"wide\"><table>\n<tr><th>experiment</th><th style=\"text-align:left\">its question</th>\
         <th>predicted within a quarter</th><th>aims reached</th></tr>\n",
    );
    for report in reports {
        let share = |aim: bool| {
            let figures = report.figures.iter();
            let of: Vec<_> = figures
                .filter(|figure| figure.aim == aim && (aim || figure.predicted))
                .filter(|figure| figure.not_compared.is_none())
                .collect();
            let good = of.iter().filter(|figure| is_good(figure)).count();
            match of.len() {
                0 => "-".to_owned(),
                all => {
                    let class = if good == all { "good" } else { "off" };
                    format!("<span class=\"{class}\">{good} of {all}</span>")
                }
            }
        };
        let name = escaped(&report.experiment);
        let _ = writeln!(
            out,
            "<tr><td><a href=\"#{name}\">{name}</a></td><td style=\"white-space:normal;text-align:left\">{}</td>\
             <td>{}</td><td>{}</td></tr>",
            escaped(&report.title),
            share(false),
            share(true)
        );
    }
    out.push_str("</table></div></section>\n");
}

fn section(out: &mut String, report: &Report) {
    let scale = report.scale.as_ref();
    let scale = scale.map_or_else(String::new, |scale| format!(" Scaled down: {scale}."));
    let name = escaped(&report.experiment);
    let _ = writeln!(
        out,
        "<section id=\"{name}\"><h2>{name}</h2>\n<p class=\"lead\">{}</p>\n<p class=\"fine\">Device {} (modelled), {} seeds, \
         {:.0} s of virtual time.{}</p>",
        escaped(&report.title),
        escaped(&report.device),
        report.seeds,
        report.simulated_ns as f64 / 1e9,
        escaped(&scale)
    );
    if !report.figures.is_empty() {
        out.push_str("<h3>Published and ours</h3>\n");
        out.push_str(&report.figures_chart());
        table(out, &figure_rows(&report.figures));
        for figure in &report.figures {
            let (verb, why) = match &figure.not_compared {
                Some(why) => ("is not compared", Some(why)),
                None => ("is off", figure.why.as_ref()),
            };
            if let Some(why) = why {
                let (what, why) = (escaped(&figure.what), escaped(why));
                let _ = writeln!(out, "<p class=\"fine\"><b>{what}</b> {verb}: {why}</p>");
            }
        }
    }
    if let Some(real) = &report.real {
        real_section(out, real);
    }
    if let Some(chart) = report.timeline_chart() {
        out.push_str("<h3>The queue over time</h3>\n");
        out.push_str(&chart);
    }
    if let Some(chart) = report.latency_chart() {
        out.push_str("<h3>How long an operation takes</h3>\n");
        out.push_str(&chart);
    }
    if !report.cells.is_empty() {
        out.push_str("<h3>Every condition</h3>\n");
    }
    for (number, cell) in report.cells.iter().enumerate() {
        let (name, about) = (escaped(&cell.name), escaped(&cell.about));
        let open = if number == 0 { " open=\"\"" } else { "" };
        let _ = writeln!(
            out,
            "<details{open}><summary><b>{name}</b>: {about}</summary>"
        );
        table(out, &cell_rows(cell));
        for line in remarks(cell) {
            let _ = writeln!(out, "<p>{}</p>", escaped(&line));
        }
        out.push_str("</details>\n");
    }
    out.push_str("<h3>What you should know</h3>\n<ul>\n");
    for note in &report.notes {
        let _ = writeln!(out, "<li>{}</li>", escaped(note));
    }
    out.push_str("</ul></section>\n");
}

fn real_section(out: &mut String, real: &RealReport) {
    let _ = writeln!(
        out,
        "<h3>Simulated and real</h3>\n<p>The same in real time: the modelled device keeps the host's clock, below a FUSE \
         mount; real threads on {} processors (load average {} when it began); {}.</p>",
        real.processors,
        escaped(&real.load),
        escaped(&real.groups)
    );
    table(out, &real_rows(real));
    for row in &real.rows {
        if let Some(why) = &row.why {
            let ratio = |of| estimate(super::plan::Unit::Ratio, of);
            let _ = writeln!(
                out,
                "<p class=\"fine\"><b>{}</b>: {} and {}: {}</p>",
                escaped(&row.what),
                ratio(&row.simulated),
                ratio(&row.real),
                escaped(why)
            );
        }
    }
}
