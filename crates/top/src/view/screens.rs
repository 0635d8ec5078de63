//! The screens with a table.

use super::paint::{Canvas, Palette};
use super::table::{self, Align, Cell, Column, Layout};
use crate::model::{ApplicationRow, ConnectionRow, DropRow, Model, PeerRow, Screen};
use crate::reading::{Bytes, Path, Transport};
use crate::text::{age, rate, wrapped};
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

const PEERS: [Column; 6] = [
    Column::new("Peer", 14, Align::Left).grows(2),
    Column::new("Tunnel", 8, Align::Left).grows(1).from(80),
    Column::new("Endpoint", 21, Align::Left).grows(2).from(76),
    Column::new("Handshake", 9, Align::Right),
    Column::new("Received", 11, Align::Right),
    Column::new("Sent", 11, Align::Right),
];

pub(super) const APPLICATIONS: [Column; 6] = [
    Column::new("Application", 24, Align::Path).grows(3),
    Column::new("Path", 12, Align::Left).grows(1),
    Column::new("Conns", 5, Align::Right).from(66),
    Column::new("Received", 11, Align::Right),
    Column::new("Sent", 11, Align::Right),
    Column::new("History", 10, Align::Left).grows(2).from(78),
];

const DROPS: [Column; 4] = [
    Column::new("Tunnel", 12, Align::Left).grows(1),
    Column::new("Packets", 10, Align::Right),
    Column::new("Per second", 10, Align::Right),
    Column::new("Reason", 43, Align::Left).grows(8),
];

const CONNECTIONS: [Column; 6] = [
    Column::new("Application", 16, Align::Path).grows(2),
    Column::new("Path", 10, Align::Left).grows(1),
    Column::new("", 3, Align::Left).from(80),
    Column::new("Remote", 22, Align::Left).grows(2),
    Column::new("Received", 11, Align::Right).from(70),
    Column::new("Sent", 11, Align::Right).from(80),
];

/// Draws the table of the model's screen.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, model: &mut Model) {
    let rows = model.rows();
    let selected = model.position(&rows);
    model.page = usize::from(area.height.saturating_sub(1));
    let columns: &[Column] = match model.screen {
        Screen::Peers => &PEERS,
        Screen::Applications => &APPLICATIONS,
        Screen::Drops => &DROPS,
        Screen::Overview | Screen::Connections => &CONNECTIONS,
    };
    let layout = Layout::new(columns, area.width);
    let at = model.screen.index();
    let mut first = model.first.get(at).copied().unwrap_or_default();
    let cells = |canvas: &Canvas<'_>, row: usize| cells(model, canvas.palette, &layout, row);
    table::draw(canvas, area, &layout, &rows, selected, &mut first, cells);
    if let Some(place) = model.first.get_mut(at) {
        *place = first;
    }
    if rows.is_empty() {
        let width = usize::from(area.width.saturating_sub(2));
        for (line, y) in wrapped(&nothing(model), width)
            .into_iter()
            .zip(area.y + 2..)
        {
            canvas.put(1, y, &line, canvas.palette.quiet(), area.width);
        }
    }
}

/// Returns a sentence for a table without rows.
fn nothing(model: &Model) -> String {
    let Some(tables) = &model.tables else {
        return "reading …".to_owned();
    };
    if !model.filter.is_empty() {
        return format!("nothing matches the filter: {}", model.filter);
    }
    match model.screen {
        Screen::Connections => "no connections".to_owned(),
        Screen::Applications if !tables.tunnels.is_empty() => {
            "no application has a connection".to_owned()
        }
        Screen::Drops if !tables.tunnels.is_empty() => "nothing was dropped".to_owned(),
        _ => model.without_tunnels.as_str().to_owned(),
    }
}

fn cells(model: &Model, palette: Palette, layout: &Layout<'_>, row: usize) -> Vec<Cell> {
    let Some(tables) = &model.tables else {
        return Vec::new();
    };
    let cells = match model.screen {
        Screen::Overview => None,
        Screen::Peers => tables.peers.get(row).map(|row| peer(row, palette)),
        Screen::Applications => tables.applications.get(row).map(|row| {
            let bars = model.applications.bars(&row.key, layout.width(5));
            application(row, palette, bars)
        }),
        Screen::Drops => tables.drops.get(row).map(|row| drops(row, palette)),
        Screen::Connections => {
            let row = tables.connections.get(row);
            row.map(|row| connection(row, palette))
        }
    };
    cells.unwrap_or_default()
}

/// Returns the cells of a rate.
pub(super) fn rates(bytes: Option<Bytes>, palette: Palette) -> [Cell; 2] {
    [
        bytes.map(|bytes| bytes.received),
        bytes.map(|bytes| bytes.sent),
    ]
    .map(|one| {
        let style = match one {
            None | Some(0) => palette.quiet(),
            Some(_) => palette.plain(),
        };
        Cell::new(rate(one), style)
    })
}

/// Returns the style of a path, or of several.
fn of_paths<'a>(mut paths: impl Iterator<Item = &'a Path>, palette: Palette) -> Style {
    let first = paths.next();
    match (first, paths.next()) {
        (Some(Path::Tunnel(_)), None) => palette.good(),
        (Some(Path::Blocked), None) => palette.bad(),
        (Some(Path::Direct) | None, None) => palette.plain(),
        _ => palette.warning(),
    }
}

fn peer(row: &PeerRow, palette: Palette) -> Vec<Cell> {
    let (handshake, style) = match row.age {
        None => ("never".to_owned(), palette.warning()),
        Some(old) if row.is_connected() => (age(old), palette.good()),
        Some(old) => (age(old), palette.quiet()),
    };
    let [received, sent] = rates(row.rate, palette);
    let endpoint = row.endpoint.as_ref();
    vec![
        Cell::new(row.shown().as_str(), palette.plain()),
        Cell::new(row.tunnel.as_str(), palette.plain()),
        Cell::new(endpoint.map_or("-", |it| it.as_str()), palette.plain()),
        Cell::new(handshake, style),
        received,
        sent,
    ]
}

/// Returns the cells of an application, with its sparkline.
pub(super) fn application(row: &ApplicationRow, palette: Palette, bars: String) -> Vec<Cell> {
    let [received, sent] = rates(row.rate, palette);
    let name = match row.connections {
        0 => palette.quiet(),
        _ => palette.plain(),
    };
    vec![
        Cell::new(row.shown.as_str(), name),
        Cell::new(row.paths(), of_paths(row.paths.iter(), palette)),
        Cell::new(row.connections.to_string(), name),
        received,
        sent,
        Cell::new(bars, palette.bars()),
    ]
}

fn drops(row: &DropRow, palette: Palette) -> Vec<Cell> {
    let (per_second, style) = match row.rate {
        None => ("-".to_owned(), palette.quiet()),
        Some(0) => ("0".to_owned(), palette.quiet()),
        Some(rate) => (rate.to_string(), palette.warning()),
    };
    vec![
        Cell::new(row.tunnel.as_str(), palette.plain()),
        Cell::new(row.count.to_string(), palette.plain()),
        Cell::new(per_second, style),
        Cell::new(row.reason.as_str(), palette.plain()),
    ]
}

fn connection(row: &ConnectionRow, palette: Palette) -> Vec<Cell> {
    let [received, sent] = rates(row.rate, palette);
    let application = row.application.as_ref();
    let remote = row.remote.map(|remote| remote.to_string());
    vec![
        match application {
            Some(application) => Cell::new(application.as_str(), palette.plain()),
            None => Cell::new("no process", palette.quiet()),
        },
        Cell::new(
            row.path.word(),
            of_paths(std::iter::once(&row.path), palette),
        ),
        Cell::new(transport(row.transport), palette.plain()),
        Cell::new(
            remote.unwrap_or_else(|| "anywhere".to_owned()),
            palette.plain(),
        ),
        received,
        sent,
    ]
}

pub(super) const fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
    }
}
