//! The overview: tunnels with the reasons for their states, the busiest applications, drops.

use super::paint::{Canvas, Palette};
use super::screens::{APPLICATIONS, application, rates};
use super::table::{Align, Cell, Column, Layout};
use crate::model::{Model, Tables, TunnelRow};
use crate::reading::Health;
use crate::text::{cut_end, wrapped};
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use std::cmp::Reverse;

const TUNNELS: [Column; 6] = [
    Column::new("Tunnel", 15, Align::Left),
    Column::new("State", 8, Align::Left),
    Column::new("Peers", 7, Align::Right),
    Column::new("Received", 11, Align::Right),
    Column::new("Sent", 11, Align::Right),
    Column::new("History", 21, Align::Left).grows(1).from(80),
];

/// Applications and drop reasons that the overview shows at least.
const FEW: usize = 4;

/// A line of the overview.
enum Line<'a> {
    Empty,
    Titles(&'a Layout<'a>),
    Row(&'a Layout<'a>, Vec<Cell>),
    Sentence(String, Style),
}

pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, model: &mut Model) {
    let tunnels = Layout::new(&TUNNELS, area.width);
    let applications = Layout::new(&APPLICATIONS, area.width);
    let lines = lines(model, canvas.palette, area, &tunnels, &applications);
    let room = usize::from(area.height);
    let overflow = lines.len().saturating_sub(room);
    let first = model.scrolled().min(overflow);
    for (line, y) in lines.iter().skip(first).take(room).zip(area.y..) {
        match line {
            Line::Empty => {}
            Line::Titles(layout) => layout.titles(canvas, y),
            Line::Row(layout, cells) => layout.row(canvas, y, cells),
            Line::Sentence(text, style) => {
                canvas.put(1, y, text, *style, area.width.saturating_sub(1));
            }
        }
    }
    drop(lines);
    model.overflow = overflow;
    model.page = room;
}

fn lines<'a>(
    model: &Model,
    palette: Palette,
    area: Rect,
    tunnels: &'a Layout<'a>,
    applications: &'a Layout<'a>,
) -> Vec<Line<'a>> {
    let width = usize::from(area.width.saturating_sub(2));
    let sentence = |text: &str, style: Style| {
        let lines = wrapped(text, width).into_iter();
        lines.map(move |line| Line::Sentence(line, style))
    };
    let mut lines = Vec::new();
    if let Some(fault) = &model.fault {
        lines.extend(sentence(&format!("[!] {fault}"), palette.bad()));
        lines.push(Line::Empty);
    }
    let Some(tables) = &model.tables else {
        lines.extend(sentence("reading …", palette.quiet()));
        return lines;
    };
    for remark in &tables.remarks {
        lines.extend(sentence(&format!("[!] {remark}"), palette.warning()));
    }
    if tables.tunnels.is_empty() {
        lines.extend(sentence(model.without_tunnels.as_str(), palette.warning()));
    } else {
        lines.push(Line::Titles(tunnels));
    }
    for row in &tables.tunnels {
        let bars = model.tunnels.bars(row.name.as_str(), tunnels.width(5));
        lines.push(Line::Row(tunnels, tunnel(row, palette, bars)));
        lines.extend(remarks(row, palette, width));
    }
    lines.push(Line::Empty);
    let drops = drop_lines(tables, palette, width);
    let used = lines.len() + drops.len() + 2;
    let room = usize::from(area.height).saturating_sub(used).max(FEW);
    let all = model.busiest();
    if all.is_empty() {
        lines.extend(sentence(
            "No application has a connection.",
            palette.quiet(),
        ));
    } else {
        lines.push(Line::Titles(applications));
    }
    let shown = if all.len() <= room { room } else { room - 1 };
    for row in all.iter().take(shown) {
        let bars = model.applications.bars(&row.key, applications.width(5));
        lines.push(Line::Row(applications, application(row, palette, bars)));
    }
    if all.len() > shown {
        let text = format!(
            "and {} more on the screen Applications (3)",
            all.len() - shown
        );
        lines.push(Line::Sentence(text, palette.quiet()));
    }
    lines.push(Line::Empty);
    lines.extend(drops);
    lines
}

fn tunnel(row: &TunnelRow, palette: Palette, bars: String) -> Vec<Cell> {
    let (word, style) = health(row.health, palette);
    let [received, sent] = rates(row.rate, palette);
    let peers = match row.connected {
        connected if connected == row.peers => palette.plain(),
        _ => palette.warning(),
    };
    vec![
        Cell::new(row.name.as_str(), palette.title()),
        Cell::new(word, style),
        Cell::new(format!("{}/{}", row.connected, row.peers), peers),
        received,
        sent,
        Cell::new(bars, palette.bars()),
    ]
}

const fn health(health: Health, palette: Palette) -> (&'static str, Style) {
    match health {
        Health::Up => ("up", palette.good()),
        Health::Degraded => ("degraded", palette.warning()),
        Health::Down => ("down", palette.bad()),
    }
}

/// Returns the sentences below a tunnel.
fn remarks<'a>(row: &TunnelRow, palette: Palette, width: usize) -> Vec<Line<'a>> {
    let (_, style) = health(row.health, palette);
    let width = width.saturating_sub(2);
    let sentence = |text: &str, style| Line::Sentence(format!("  {text}"), style);
    let mut lines = vec![sentence(row.mode.as_str(), palette.quiet())];
    for finding in &row.findings {
        let text = wrapped(&format!("[!] {finding}"), width).into_iter();
        lines.extend(text.map(|line| sentence(&line, style)));
    }
    // `taupe status` has them in full.
    let notes = row.notes.iter();
    lines.extend(notes.map(|note| sentence(&cut_end(note.as_str(), width), palette.quiet())));
    lines
}

fn drop_lines<'a>(tables: &Tables, palette: Palette, width: usize) -> Vec<Line<'a>> {
    if tables.tunnels.is_empty() {
        return Vec::new();
    }
    if tables.drops.is_empty() {
        let text = "No packet was dropped or refused.".to_owned();
        return vec![Line::Sentence(text, palette.quiet())];
    }
    let mut rows: Vec<_> = tables.drops.iter().collect();
    rows.sort_by_key(|row| Reverse((row.rate, row.count)));
    let rate = tables.drop_rate();
    let style = match rate {
        Some(1..) => palette.warning(),
        _ => palette.title(),
    };
    let title = match rate {
        Some(rate) => format!("Dropped or refused packets, {rate} per second now"),
        None => "Dropped or refused packets".to_owned(),
    };
    let mut lines = vec![Line::Sentence(title, style)];
    for row in rows.iter().take(FEW - 1) {
        let text = format!("{:>10}  {}: {}", row.count, row.tunnel, row.reason);
        let text = cut_end(&text, width);
        lines.push(Line::Sentence(text, palette.plain()));
    }
    if let more @ 1.. = rows.len().saturating_sub(FEW - 1) {
        let text = format!("and {more} more reasons on the screen Drops (4)");
        lines.push(Line::Sentence(text, palette.quiet()));
    }
    lines
}
