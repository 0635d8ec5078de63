//! The lines below a table: the selected row in full, messages and questions.

use super::paint::{Canvas, Palette};
use super::screens::transport;
use crate::model::{Mode, Model, Place, Screen, Tables};
use crate::reading::Bytes;
use crate::text::{age, bytes, cut_end, wrapped};
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, model: &Model) {
    let (text, style) = content(model, canvas.palette);
    let width = usize::from(area.width.saturating_sub(2));
    let lines: Vec<String> = text.iter().flat_map(|text| wrapped(text, width)).collect();
    let room = usize::from(area.height);
    for (index, (line, y)) in lines.iter().take(room).zip(area.y..).enumerate() {
        let is_cut = index + 1 == room && lines.len() > room;
        let line = if is_cut {
            cut_end(&format!("{line} …"), width)
        } else {
            line.clone()
        };
        canvas.put(1, y, &line, style, area.width.saturating_sub(1));
    }
}

/// Returns the paragraphs to show, and their style.
fn content(model: &Model, palette: Palette) -> (Vec<String>, Style) {
    match &model.mode {
        Mode::Filter => {
            let text = format!("Filter (part of a name or address): {}_", model.filter);
            return (vec![text], palette.title());
        }
        Mode::Choose { place, tunnels } => {
            let names = (1..)
                .zip(tunnels)
                .map(|(number, name)| format!("{number} {name}"));
            let names: Vec<_> = names.collect();
            let text = format!("{} in which tunnel? {}", place.verb(), names.join(", "));
            return (vec![text], palette.title());
        }
        Mode::Confirm(change) => {
            let question = format!("Run `{}`?", change.command());
            let effect = match change.place {
                Place::Allowed => format!("{} will use {}. ", change.entry, change.tunnel),
                Place::Disallowed => format!("{} will bypass {}. ", change.entry, change.tunnel),
                Place::Nowhere => String::new(),
            };
            let text = format!(
                "{effect}This edits the file of {} and takes effect at once.",
                change.tunnel
            );
            return (vec![question, text], palette.warning());
        }
        Mode::Browse | Mode::Help => {}
    }
    if let Some(notice) = &model.notice {
        let style = match notice.is_error {
            true => palette.bad(),
            false => palette.good(),
        };
        return (vec![notice.text.to_string()], style);
    }
    if let (Some(fault), true) = (&model.fault, model.screen != Screen::Overview) {
        return (vec![format!("[!] {fault}")], palette.bad());
    }
    let selected = model.tables.as_ref().and_then(|tables| {
        let rows = model.rows();
        selected(tables, model.screen, *rows.get(model.position(&rows)?)?)
    });
    (selected.unwrap_or_default(), palette.plain())
}

fn amounts(total: Option<Bytes>) -> String {
    match total {
        Some(total) => format!(
            "{} received, {} sent",
            bytes(total.received),
            bytes(total.sent)
        ),
        None => "bytes not counted".to_owned(),
    }
}

/// Describes a row of a screen's table.
fn selected(tables: &Tables, screen: Screen, row: usize) -> Option<Vec<String>> {
    Some(match screen {
        Screen::Overview => return None,
        Screen::Peers => {
            let row = tables.peers.get(row)?;
            let endpoint = row.endpoint.as_ref();
            let endpoint = endpoint.map_or("without an endpoint", |it| it.as_str());
            let handshake = match row.age {
                Some(old) => format!("latest handshake {} ago", age(old)),
                None => "no handshake yet".to_owned(),
            };
            let mut last = amounts(Some(row.total));
            if !row.detail.is_empty() {
                last += &format!("; {}", row.detail);
            }
            vec![
                format!("{} {}", row.shown(), row.public_key),
                format!("{}, {endpoint}, {handshake}", row.tunnel),
                last,
            ]
        }
        Screen::Applications => {
            let row = tables.applications.get(row)?;
            let count = match (row.processes.len(), row.connections) {
                (_, 0) => "no connections".to_owned(),
                (processes, connections) => format!(
                    "{}, {}, {}",
                    number(processes, "process", "processes"),
                    number(connections, "connection", "connections"),
                    amounts(row.total)
                ),
            };
            vec![row.shown.to_string(), count, row.why.to_string()]
        }
        Screen::Drops => {
            let row = tables.drops.get(row)?;
            vec![format!("{}: {} {}", row.tunnel, row.count, row.reason)]
        }
        Screen::Connections => {
            let row = tables.connections.get(row)?;
            let application = row.application.as_ref();
            let application = application.map_or("no process", |it| it.as_str());
            let process = row.process.map(|id| format!(" ({id})"));
            let remote = row.remote.map(|remote| remote.to_string());
            vec![
                format!("{application}{}", process.unwrap_or_default()),
                format!(
                    "{} {} -> {}, {}",
                    transport(row.transport),
                    row.local,
                    remote.as_deref().unwrap_or("anywhere"),
                    amounts(row.total)
                ),
                format!("{}: {}", row.path.word(), row.why),
            ]
        }
    })
}

fn number(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    }
}
